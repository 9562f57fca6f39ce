"""Calls of functions in the libraries. They go past torch, so whoever writes a step down is told of each."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from torch import Tensor

Listener = Callable[..., None]
_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


def launch(function: Any, *arguments: Any) -> None:
    """Call a function of a library. It gets the address of every tensor, which the caller keeps alive."""
    if (listener := _listener.get()) is not None:
        listener(function, *arguments)
    if function(*[one.data_ptr() if isinstance(one, Tensor) else one for one in arguments]):
        raise MemoryError("a kernel found no memory to work in")


@contextmanager
def heard_by(listener: Listener) -> Iterator[None]:
    """While the block lasts, tell the listener of every function that is called, and with what."""
    before = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(before)
