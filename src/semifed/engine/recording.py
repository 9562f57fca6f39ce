"""A step written down once and replayed: what torch does below its Python, without the Python.

On the way from a method's loss to its gradient lie the net's modules, `vmap` and autograd. For a small net they take
longer than the arithmetic. What comes of them is a flat list of operations on tensors, and it is the same in all steps
whose tensors have the same shapes: mapped over clients no function can look at a number, `vmap` does not let it.
So a function is called as it is when it first sees such shapes. The second time the operations are written down, the
third time they are carried out beside the function. If all bits are the same, they take its place from then on;
if not, or if something was done that cannot be written down, the function stays.
"""

from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from semifed import library
from semifed.engine.tape import Recorder, Tape
from semifed.nets.kernels.launch import heard_by
from semifed.params import leaves, tree_map

MOST = 128
"""Forms of arguments that a function remembers."""

_shape, _dtype = attrgetter("shape"), attrgetter("dtype")


class Recorded:
    """A pure function of trees of tensors, replayed where that gives the same bits."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._ways: dict[Any, Callable[..., Any]] = {}  # how arguments of a form are answered the next time

    def __call__(self, *arguments: Any) -> Any:
        names, tensors = list[Any](), list[Tensor]()
        _take_apart(arguments, names, tensors)
        shapes = (*map(_shape, tensors), *map(Tensor.stride, tensors), *map(_dtype, tensors))
        form = (*names, *shapes, library.switched_off())
        way: Callable[..., Any] = self._ways.get(form, self._first)
        return way(form, arguments, tensors)

    def _first(self, form: Any, arguments: Any, _tensors: Sequence[Tensor]) -> Any:
        if len(self._ways) >= MOST:
            self._ways.clear()
        self._ways[form] = self._second
        return self._function(*arguments)

    def _second(self, form: Any, arguments: Any, _tensors: Sequence[Tensor]) -> Any:
        """Write the operations down."""
        self._ways[form] = self._plainly
        own = tree_map(Tensor.detach, arguments)  # no tensor stands in two places, as one might by chance
        recorder = Recorder([*leaves(own)])
        try:
            with recorder, heard_by(recorder.launched):
                results = self._function(*own)
        except Exception:  # torch does not let itself be written down here; or the function fails, and will again
            return self._function(*arguments)
        if (tape := recorder.tape(results)) is not None:
            self._ways[form] = partial(self._third, tape)
        return results

    def _third(self, tape: Tape, form: Any, arguments: Any, tensors: Sequence[Tensor]) -> Any:
        """Compare what was written down with the function."""
        replayed, results = tape(tensors), self._function(*arguments)
        self._ways[form] = partial(_replay, tape) if _same_bits(results, replayed) else self._plainly
        return results

    def _plainly(self, _form: Any, arguments: Any, _tensors: Sequence[Tensor]) -> Any:
        return self._function(*arguments)


def _replay(tape: Tape, _form: Any, _arguments: Any, tensors: Sequence[Tensor]) -> Any:
    return tape(tensors)


def _take_apart(tree: Any, names: list[Any], tensors: list[Tensor]) -> None:
    """The tensors of a tree in order, and the names in it; both are needed to tell two trees apart."""
    if isinstance(tree, Tensor):
        tensors.append(tree)
        return
    names.append(len(tree))
    if not isinstance(tree, tuple):
        names.extend(tree)
        tree = tree.values()
    for branch in tree:
        _take_apart(branch, names, tensors)


def _same_bits(one: Any, other: Any) -> bool:
    """Whether two trees of the same shape are the same to the last bit, signs of zeros and kinds of NaN too."""
    pairs = zip(leaves(one), leaves(other), strict=True)
    return all(
        left.shape == right.shape and left.dtype == right.dtype and torch.equal(_bytes(left), _bytes(right))
        for left, right in pairs
    )


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().reshape(-1).clone(memory_format=torch.contiguous_format).view(torch.uint8)
