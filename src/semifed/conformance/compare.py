"""Trees of tensors side by side: where two differ, by how much, and in words."""

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from torch import Tensor

from semifed.params import expand_as, tree_map
from semifed.payload import Partial

FLIPS = 0.01
"""The share of a mask's entries that rounding may flip, where a tensor is sent entry by entry above a threshold."""


class Entry(NamedTuple):
    """One tensor of a tree; of a `Partial` also the mask of what is sent."""

    value: Tensor
    sent: Tensor | None = None


def copied(tree: Any) -> Any:
    """The same tree with tensors of its own."""
    return tree_map(lambda tensor: tensor.detach().clone(), tree)


def entries(tree: Any, path: str = "") -> Iterator[tuple[str, Entry]]:
    """Every tensor of a tree with its path."""
    if isinstance(tree, Tensor):
        yield path, Entry(tree)
    elif isinstance(tree, Partial):
        for name, value in tree.values.items():
            yield f"{path}/{name}", Entry(value, tree.sent[name])
    elif isinstance(tree, Mapping):
        for name, branch in tree.items():
            yield from entries(branch, f"{path}/{name}" if path else str(name))
    else:
        raise TypeError(f"{path} is a {type(tree).__name__}, not a tensor, a dict of tensors or a Partial")


def difference(left: Any, right: Any, tolerance: float = 0.0) -> str:
    """The largest difference of two trees in words; empty if there is none beyond the tolerance.

    What a `Partial` withholds is not looked at.
    """
    one, two = dict(entries(left)), dict(entries(right))
    for path in sorted(one.keys() ^ two.keys()):
        return f"{path} is in one of them only"
    largest, where = 0.0, ""
    for path, entry in one.items():
        if unlike := _unlike(entry, two[path], tolerance):
            return f"{path} {unlike}"
        if (gap := _gap(entry, two[path], tolerance)) > largest:
            largest, where = gap, path
    return f"{where} differs by {largest:.1e}" if largest else ""


def _unlike(left: Entry, right: Entry, tolerance: float) -> str:
    """How two tensors differ in type, shape or mask."""
    if describe(left.value) != describe(right.value):
        return f"is {describe(left.value)} in one and {describe(right.value)} in the other"
    if left.sent is None or right.sent is None:
        return "" if left.sent is right.sent else "has a mask in one of them only"
    flipped = left.sent ^ right.sent
    allowed = max(1, FLIPS * flipped.numel()) if tolerance and flipped.dim() else 0
    return "is sent in one and withheld in the other" if int(flipped.sum()) > allowed else ""


def _gap(left: Entry, right: Entry, tolerance: float) -> float:
    """The largest distance beyond the tolerance of what both send; infinite if one of them is not a number."""
    one, two = left.value.detach().double(), right.value.detach().double()
    same = (one == two) | (one.isnan() & two.isnan())
    if left.sent is not None and right.sent is not None:
        same |= ~expand_as(left.sent & right.sent, one)
    distance = (one - two).abs().nan_to_num(nan=math.inf, posinf=math.inf)
    beyond = distance.where(~same & ~(distance <= tolerance * (1 + two.abs())), 0)
    return float(beyond.max()) if beyond.numel() else 0.0


def describe(tensor: Tensor) -> str:
    """Type and shape of a tensor, such as ``float32 3x4``."""
    return f"{str(tensor.dtype).removeprefix('torch.')} {'x'.join(map(str, tensor.shape)) or 'scalar'}"


def first_nan(tree: Any) -> str:
    """The path of the first tensor that holds a NaN; empty if there is none. An infinite bound may be meant."""
    return next((path for path, (value, _) in entries(tree) if bool(value.isnan().any())), "")
