"""Arithmetic on dicts of tensors: a net's parameters, a part, or a nested tree of them.

A *tree* is a tensor, a dict of trees or a (named) tuple of trees. A *stacked* tree has one more leading
axis, the clients.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

Params = dict[str, Tensor]
"""Parameter and buffer names of a net, with their tensors."""

Parts = dict[str, Any]
"""Part names with their trees: what a method trains, sends and keeps."""


def tree_map(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """Apply a function leaf by leaf to one tree, or to several of the same shape."""
    if isinstance(tree, Tensor):
        return function(tree, *others)
    if isinstance(tree, Mapping):
        return {name: tree_map(function, tree[name], *(other[name] for other in others)) for name in tree}
    if isinstance(tree, tuple):
        mapped = [tree_map(function, *leaves) for leaves in zip(tree, *others, strict=True)]
        return type(tree)(*mapped) if hasattr(tree, "_fields") else tuple(mapped)
    return function(tree, *others)


def leaves(tree: Any) -> Iterator[Tensor]:
    """Every tensor of a tree, in order."""
    if isinstance(tree, Mapping):
        for branch in tree.values():
            yield from leaves(branch)
    elif isinstance(tree, tuple):
        for branch in tree:
            yield from leaves(branch)
    else:
        yield tree


def pick(parts: Parts, names: Sequence[str]) -> Parts:
    """The named parts alone."""
    return {name: parts[name] for name in names}


def add(left: Params, right: Params) -> Params:
    """Sum of two parameter dicts; an entry that only `left` has (a buffer) passes through as it is."""
    return {name: value + right[name] if name in right else value for name, value in left.items()}


def mix(*weighted: tuple[float | Tensor, Params]) -> Params:
    """Weighted sum of parameter dicts with the same names; counters, being integers, are those of the first."""
    first = weighted[0][1]
    return {
        name: sum((weight * params[name] for weight, params in weighted), torch.zeros_like(value))
        if value.is_floating_point()
        else value
        for name, value in first.items()
    }


def layer(name: str) -> str:
    """The layer a parameter belongs to: ``conv1`` of ``conv1.weight``."""
    return name.rpartition(".")[0]


def stack(trees: Sequence[Any]) -> Any:
    """Trees of several clients as one stacked tree; what all of them share takes no memory."""
    return tree_map(_stack_leaf, *trees)


def _stack_leaf(*tensors: Tensor) -> Tensor:
    first = tensors[0]
    if all(tensor is first for tensor in tensors):
        return first.expand(len(tensors), *first.shape)
    return torch.stack(tensors)


def at(stacked: Any, index: int) -> Any:
    """One client's tree out of a stacked one."""
    return tree_map(lambda tensor: tensor[index], stacked)


def unstack(stacked: Any, count: int) -> list[Any]:
    """A stacked tree as one tree a client."""
    return [at(stacked, index) for index in range(count)]


def place(tree: Any, device: torch.device) -> Any:
    """A tree on a device; what is there already stays the very same tensor."""
    return tree_map(lambda tensor: tensor.to(device), tree)


def lay_out(tree: Any, layout: torch.memory_format) -> Any:
    """A tree whose tensors of four axes lie in memory in this order; what does already stays the very same tensor."""
    return tree_map(lambda tensor: _laid_out(tensor, layout) if tensor.dim() == 4 else tensor, tree)


def _laid_out(tensor: Tensor, layout: torch.memory_format) -> Tensor:
    dense = tensor.contiguous(memory_format=layout)
    if layout is not torch.channels_last or dense.shape[1] != 1 or dense.stride(1) == 1:
        return dense
    # One channel lies in both orders; torch goes by the strides, and must be told for what comes of these images.
    _, _, height, width = dense.shape
    return dense.as_strided(dense.shape, (height * width, 1, width, 1))


def expand_as(scale: Tensor, like: Tensor) -> Tensor:
    """A scalar, or one value a client, shaped so that it multiplies `like`."""
    return scale.reshape(scale.shape + (1,) * (like.dim() - scale.dim()))


def flatten(tree: Any, prefix: str = "") -> dict[str, Tensor]:
    """Nested dicts as one flat dict with names joined by slashes, for files; an empty dict ends in one."""
    if isinstance(tree, Tensor):
        return {prefix: tree}
    if not isinstance(tree, Mapping):
        raise TypeError(f"{prefix or 'a tree'}: expected tensors and dicts of them, not {type(tree).__name__}")
    flat: dict[str, Tensor] = {f"{prefix}/": torch.zeros(0)} if prefix and not tree else {}
    for name, branch in tree.items():
        if not isinstance(name, str) or not name or "/" in name:
            raise TypeError(f"a part or parameter name must be text without a slash, not {name!r}")
        flat |= flatten(branch, f"{prefix}/{name}" if prefix else name)
    return flat


def unflatten(flat: Mapping[str, Tensor]) -> Any:
    """The nested dicts that `flatten` made flat."""
    if set(flat) == {""}:
        return flat[""]
    tree: dict[str, Any] = {}
    for path, tensor in flat.items():
        *branches, name = path.split("/")
        node = tree
        for branch in branches:
            node = node.setdefault(branch, {})
        if name:
            node[name] = tensor
    return tree
