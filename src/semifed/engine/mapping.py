"""A function of one client as a function of a stacked cohort: torch's `vmap`, by a shorter way.

`torch.func.vmap` walks its arguments with a general tree library, which in Python takes longer than the arithmetic of a
small net. The same inner functions are called here on our own trees. A torch that has none of them gets `vmap`.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.func import vmap

from semifed.params import leaves, tree_map

try:
    from torch._C import _functorch as functorch
    from torch._functorch.predispatch import lazy_load_decompositions

    _NAMES = ("_add_batch_dim", "_remove_batch_dim", "_vmap_increment_nesting", "_vmap_decrement_nesting")
    SHORT_CUT = all(hasattr(functorch, name) for name in _NAMES)
except ImportError:
    SHORT_CUT = False


def over_clients(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function mapped over the first axis of every tensor in its arguments."""
    if not SHORT_CUT:
        return vmap(function)

    def mapped(*stacked: Any) -> Any:
        lazy_load_decompositions()
        clients = len(next(leaves(stacked)))
        level = functorch._vmap_increment_nesting(clients, "error")
        try:
            results = function(*tree_map(lambda leaf: functorch._add_batch_dim(leaf, 0, level), stacked))
            return tree_map(lambda leaf: _unmapped(leaf, level, clients), results)
        finally:
            functorch._vmap_decrement_nesting()

    return mapped


def _unmapped(result: Any, level: int, clients: int) -> Tensor:
    if not isinstance(result, Tensor):
        raise TypeError(f"a method's loss must give tensors, not {type(result).__name__}")
    tensor: Tensor = functorch._remove_batch_dim(result, level, clients, 0)
    return tensor
