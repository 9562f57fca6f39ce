"""The operations that a function carries out on tensors, one after the other, and how they are carried out again."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from semifed.nets.kernels.launch import launch
from semifed.params import leaves, tree_map

_aten = torch.ops.aten
_SAME = {_aten.detach.default, _aten.lift_fresh.default, _aten.alias.default}
"""Operations whose result is what went in, where nobody asks for a gradient."""

_FILLED = {
    "zeros",
    "ones",
    "full",
    "arange",
    "zeros_like",
    "ones_like",
    "full_like",
    "new_zeros",
    "new_ones",
    "new_full",
}
"""Operations whose result is always the same for the same shapes."""

_EMPTY = {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "empty_permuted"}
"""Operations that find memory for others to write into."""


class Line(NamedTuple):
    """One operation; its arguments and its result by their numbers."""

    function: Callable[..., Any]
    arguments: tuple[int, ...]
    result: int
    changes: bool = False  # what it gets: then it is carried out even if nobody reads its result


class Tape:
    """Lines to carry out on other inputs than those they were written down with."""

    def __init__(self, lines: Sequence[Line], inputs: int, constants: Mapping[int, Any], results: Any) -> None:
        """The inputs have the first numbers; constants have theirs, and are there from the start."""
        lines, last = _needed(lines, results)
        constants = {number: value for number, value in constants.items() if number in last}
        places = {number: place for place, number in enumerate((*range(inputs), *constants))}
        self._inputs, self._start, free = inputs, [*[None] * inputs, *constants.values()], list[int]()
        self._steps: list[tuple[Callable[..., Any], Callable[..., Any], int]] = []
        for at, line in enumerate(lines):
            fetch = _fetch([places[number] for number in line.arguments])
            # What nobody reads any more makes place for what comes, so that memory is freed on the way.
            for number in {*line.arguments}:
                if last[number] == at and places[number] >= inputs + len(constants):
                    free.append(places[number])
            if not free:
                free.append(len(self._start))
                self._start.append(None)
            places[line.result] = free[-1] if line.result not in last else free.pop()
            self._steps.append((line.function, fetch, places[line.result]))
        self._results = tree_map(places.__getitem__, results)

    @torch.no_grad()
    def __call__(self, inputs: Sequence[Tensor]) -> Any:
        """The results for inputs of the same shapes."""
        values = self._start.copy()
        values[: self._inputs] = inputs
        for function, fetch, place in self._steps:
            values[place] = function(*fetch(values))
        return _filled(self._results, values)


class Recorder(TorchDispatchMode):
    """Listens to torch below `vmap` and autograd. All that goes into operations and comes out gets a number."""

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.complete = True  # whether all that was done can be done again
        self._lines: list[Line] = []
        self._constants: dict[int, Any] = {}
        self._blank: set[int] = set()  # memory that nobody was seen to write into yet
        self._inputs = self._count = len(inputs)
        self._numbers = {id(tensor): number for number, tensor in enumerate(inputs)}
        self._alive = [*inputs]  # so that no two have the same id

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nobody compiles this: torch need not guard against it, for which it would import its compiler for 3 s."""
        return False

    def __torch_dispatch__(self, function: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, changes = kwargs or {}, function._schema.is_mutable
        result = function(*args, **kwargs)
        if function in _SAME:
            self._name(result, self._number(args[0]))
        elif not changes and isinstance(result, Tensor) and self._always_the_same(function, (args, *kwargs.values())):
            self._name(result, self._constant(result))
        elif _name_of(function) in _EMPTY:
            self._write(partial(torch.empty_strided, **_layout(result)), (), result, changes=False)
            self._blank |= {self._numbers[id(result)]} if result.numel() else set()
        else:
            # Inputs and constants must stay as they are, and where a result goes must be a plain argument.
            self.complete &= not [*_tensors(kwargs.values())] and (not changes or self._made_here(args[0]))
            quick = function if changes else _quick(function, args, kwargs, result)
            self._write(partial(quick, **kwargs) if kwargs else quick, args, result, changes)
        return result

    def launched(self, function: Any, *arguments: Any) -> None:
        """A kernel is called, and writes its results into some of the tensors it gets."""
        self._write(partial(launch, function), arguments, None, changes=True)

    def tape(self, results: Any) -> Tape | None:
        """What was written down, when these are the results; None if it is not all."""
        numbers = tree_map(self._number, results)
        whole = self.complete and self._blank.isdisjoint(leaves(numbers))
        return Tape(self._lines, self._inputs, self._constants, numbers) if whole else None

    def _write(self, function: Callable[..., Any], arguments: Iterable[Any], result: Any, changes: bool) -> None:
        numbers, own = tuple(map(self._number, arguments)), self._new()
        self._lines.append(Line(function, numbers, own, changes))
        if changes:
            self._blank.difference_update(numbers)
        elif not self._blank.isdisjoint(numbers):
            self.complete = False  # it was written into past torch
        if isinstance(result, Tensor):
            self._name(result, own)
        elif isinstance(result, tuple | list) and all(isinstance(one, Tensor | None) for one in result):
            for place, one in enumerate(result):
                if one is not None:
                    self._name(one, self._new())
                    self._lines.append(Line(itemgetter(place), (own,), self._numbers[id(one)]))
        elif result is not None:
            self.complete = False  # a number was looked at, and what follows may depend on it

    def _always_the_same(self, function: Any, arguments: Any) -> bool:
        if _name_of(function) in _FILLED:
            return True
        if _name_of(function) in _EMPTY or torch.Tag.nondeterministic_seeded in function.tags:
            return False
        numbers = [self._numbers.get(id(one), -1) for one in _tensors(arguments)]
        return bool(numbers) and all(number in self._constants for number in numbers)

    def _made_here(self, value: Any) -> bool:
        return self._inputs <= self._numbers.get(id(value), -1) not in self._constants

    def _number(self, value: Any) -> int:
        """The number of an argument; what no line has made is a constant."""
        if isinstance(value, Tensor):
            if id(value) not in self._numbers:
                self._name(value, self._constant(value))
            return self._numbers[id(value)]
        if isinstance(value, list | tuple) and any(isinstance(one, Tensor) for one in value):
            numbers, own = tuple(map(self._number, value)), self._new()
            self._lines.append(Line(_listed, numbers, own))
            return own
        return self._constant(value)

    def _constant(self, value: Any) -> int:
        number = self._new()
        self._constants[number] = value
        return number

    def _new(self) -> int:
        self._count += 1
        return self._count - 1

    def _name(self, tensor: Tensor, number: int) -> None:
        self._numbers[id(tensor)] = number
        self._alive.append(tensor)


def _name_of(function: Any) -> str:
    name: str = function.overloadpacket.__name__
    return name


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _needed(lines: Sequence[Line], results: Any) -> tuple[list[Line], dict[int, int]]:
    """The lines that anybody reads the result of, and the place of the line that reads a number last."""
    wanted: list[Any] = [*leaves(results)]
    read, needed = {*wanted}, list[Line]()
    for line in reversed(lines):
        if line.changes or line.result in read:
            needed.insert(0, line)
            read.update(line.arguments)
    last = {number: at for at, line in enumerate(needed) for number in line.arguments}
    return needed, last | dict.fromkeys(wanted, len(needed))


def _quick(function: Any, args: Any, kwargs: Any, result: Any) -> Any:
    """The form of an operation that Python programs call: it finds its arguments faster than the general one."""
    quick = getattr(torch, _name_of(function), None) or getattr(Tensor, _name_of(function), None)
    try:
        again = quick(*args, **kwargs)  # type: ignore[misc]  # None fails as any other that does not fit
    except (TypeError, RuntimeError):
        return function
    alike = isinstance(again, Tensor) and isinstance(result, Tensor) and _layout(again) == _layout(result)
    return quick if alike else function


def _layout(tensor: Tensor) -> dict[str, Any]:
    """How a tensor lies where."""
    return {"size": tensor.shape, "stride": tensor.stride(), "dtype": tensor.dtype, "device": tensor.device}


def _fetch(places: Sequence[int]) -> Callable[..., Any]:
    """A function that takes these places out of a list."""
    if len(places) > 1:
        return itemgetter(*places)
    return lambda values: [values[place] for place in places]


def _listed(*values: Any) -> list[Any]:
    return [*values]


def _filled(tree: Any, values: Sequence[Any]) -> Any:
    """A tree of places with what stands there."""
    if isinstance(tree, int):
        return values[tree]
    if isinstance(tree, dict):
        return {name: _filled(branch, values) for name, branch in tree.items()}
    filled = [_filled(branch, values) for branch in tree]
    return type(tree)(*filled) if hasattr(tree, "_fields") else tuple(filled)
