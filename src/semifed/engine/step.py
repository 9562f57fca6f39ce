"""One local step, of one client or of a stacked cohort: the moves of a method applied to its parts. Pure."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import vmap

from semifed.batch import Batch, Clock
from semifed.methods.base import Descend, Follow, Move, Terms
from semifed.nets.net import Net
from semifed.params import Params, Parts, expand_as, tree_map
from semifed.training import Training

Tensors = list[Tensor]


class State(NamedTuple):
    """What changes from step to step: the parts, and for each move that descends the momentum."""

    parts: Parts
    momentum: dict[int, Tensors]


class Stepper:
    """Applies a trainee's moves. `mapped`: every tensor has a leading axis of clients, each going its own way."""

    def __init__(self, net: Net, moves: Sequence[Move], training: Training, mapped: bool) -> None:
        self._net, self._moves, self._training, self._mapped = net, moves, training, mapped

    def lift(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function of one client as a function of the stacked cohort, where there is one."""
        return vmap(function) if self._mapped else function

    def __call__(self, state: State, batch: Batch, keys: Tensor, active: Tensor | None) -> tuple[State, Terms]:
        """The state after one step and the terms of its losses; a client that is not `active` stays as it is."""
        new, terms = State(dict(state.parts), dict(state.momentum)), Terms()
        for number, move in enumerate(self._moves):
            if isinstance(move, Descend):
                terms |= self._descend(number, move, new, batch, keys + number)
            else:
                self._follow(move, new.parts, batch.clock)
        return (new if active is None else _only(active, new, state)), terms

    def _descend(self, number: int, move: Descend, state: State, batch: Batch, keys: Tensor) -> Terms:
        """Move the parts against the gradient of the loss, and their buffers with the passes it made."""
        parts = state.parts
        trained = {
            part: {
                name: value.detach().requires_grad_()
                for name, value in parts[part].items()
                if self._trains(name, value)
            }
            for part in move.parts
        }

        def losses(trained: Parts, parts: Parts, batch: Batch, key: Tensor) -> tuple[Terms, dict[str, Params]]:
            current = parts | {part: {**parts[part], **params} for part, params in trained.items()}
            net = self._net.pass_with(key)
            return move.loss(net, current, batch), net.statistics(current)

        terms, statistics = self.lift(losses)(trained, parts, batch, keys)
        values = [value for params in trained.values() for value in params.values()]
        total = sum((term.sum() for term in terms.values()), torch.zeros((), device=values[0].device))
        gradients = torch.autograd.grad(total, values, allow_unused=True, materialize_grads=True)
        with torch.no_grad():
            updated, state.momentum[number] = self._update(values, list(gradients), state.momentum.get(number))
        new = iter(updated)
        for part, params in trained.items():
            parts[part] = {**parts[part], **{name: next(new) for name in params}}
        for part, buffers in statistics.items():
            parts[part] = {**parts[part], **{name: value.detach() for name, value in buffers.items()}}
        return {name: term.detach() for name, term in terms.items()}

    def _trains(self, name: str, value: Tensor) -> bool:
        return value.is_floating_point() and name not in self._net.buffers

    def _update(self, values: Tensors, gradients: Tensors, momentum: Tensors | None) -> tuple[Tensors, Tensors]:
        """Stochastic gradient descent with clipping, weight decay and momentum, in torch's order."""
        training = self._training
        if training.clip is not None:
            gradients = self._clip(gradients, training.clip)
        if training.weight_decay:
            gradients = list(torch._foreach_add(gradients, values, alpha=training.weight_decay))
        if training.momentum:
            if momentum is None:
                momentum = gradients
            else:
                momentum = list(torch._foreach_add(torch._foreach_mul(momentum, training.momentum), gradients))
            ahead = torch._foreach_add(gradients, momentum, alpha=training.momentum) if training.nesterov else momentum
            return list(torch._foreach_add(values, ahead, alpha=-training.lr)), momentum
        return list(torch._foreach_add(values, gradients, alpha=-training.lr)), []

    def _clip(self, gradients: Tensors, largest: float) -> Tensors:
        first = 1 if self._mapped else 0
        square = sum((gradient.flatten(first).square().sum(-1) for gradient in gradients), torch.zeros(()))
        scale = (largest / (square.sqrt() + 1e-6)).clamp(max=1)
        return [gradient * expand_as(scale, gradient) for gradient in gradients]

    def _follow(self, move: Follow, parts: Parts, clock: Clock) -> None:
        """Move a part's parameters towards the parts it follows; its buffers come from its own passes."""
        decay = move.decay if isinstance(move.decay, float) else self.lift(move.decay)(clock)
        decay = torch.as_tensor(decay, device=clock.round.device)
        source = {name: value for part in move.of for name, value in parts[part].items()}
        parts[move.part] = {
            name: _mixed(value, source[name], decay) if name in source and self._trains(name, value) else value
            for name, value in parts[move.part].items()
        }


def _mixed(value: Tensor, towards: Tensor, decay: Tensor) -> Tensor:
    return towards + expand_as(decay, value) * (value - towards)


def _only(active: Tensor, new: State, old: State) -> State:
    """The new state for active clients, the old one for the others."""

    def choose(new: Tensor, old: Tensor) -> Tensor:
        return new if new is old else torch.where(expand_as(active, new), new, old)

    # A move's momentum is zero before its first step, as torch's is.
    still = {number: [torch.zeros_like(tensor) for tensor in tensors] for number, tensors in new.momentum.items()}
    momentum = {
        number: [choose(*pair) for pair in zip(tensors, old.momentum.get(number, still[number]), strict=True)]
        for number, tensors in new.momentum.items()
    }
    return State(tree_map(choose, new.parts, old.parts), momentum)
