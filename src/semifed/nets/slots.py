"""Calling a module with other tensors than its own, by a shorter way than torch's."""

from typing import Any

from torch import Tensor, nn
from torch.func import functional_call

from semifed.params import Params


class Slots:
    """The places of a module's tensors: `functional_call` looks for each of them by name in every call."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._places: dict[str, tuple[dict[str, Any], str]] = {}
        for path, part in module.named_modules(remove_duplicate=False):
            for own in (part._parameters, part._buffers):
                self._places |= {f"{path}.{name}" if path else name: (own, name) for name in own}

    def call(self, state: Params, x: Tensor) -> Tensor:
        """The module with these tensors in place of its own, which come back whatever happens."""
        if not state.keys() <= self._places.keys():
            output: Tensor = functional_call(self._module, state, (x,), tie_weights=False)
            return output
        places = [self._places[name] for name in state]
        before = [own[name] for own, name in places]
        try:
            for (own, name), tensor in zip(places, state.values(), strict=True):
                own[name] = tensor
            output = self._module(x)
        finally:
            for (own, name), tensor in zip(places, before, strict=True):
                own[name] = tensor
        return output
