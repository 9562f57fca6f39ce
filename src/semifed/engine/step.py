"""One local step, of one client or of a stacked cohort: the moves of a method applied to its parts. Pure."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from semifed.batch import Batch, Clock
from semifed.engine.mapping import over_clients
from semifed.engine.recording import Recorded
from semifed.methods.base import Descend, Follow, Move, Terms
from semifed.nets.kernels.updates import Rule, Tensors, descend, follow
from semifed.nets.net import Net
from semifed.params import Params, Parts, expand_as, leaves, tree_map
from semifed.training import Training

Pace = Callable[[Parts, Clock], float | Tensor]


class State(NamedTuple):
    """What changes from step to step: the parts, and for each move that descends the momentum."""

    parts: Parts
    momentum: dict[int, Tensors]


class Seen(NamedTuple):
    """The terms of a step's losses, what they noted besides, and the labels they gave to the rows of a pool."""

    terms: Terms
    notes: Params
    guesses: Params  # int64 [rows] by pool, -1 where a row got none that counts


class Pull(NamedTuple):
    """What a loss saw, how its passes have moved buffers of the parts, and its gradient, if any, by what is trained."""

    seen: Seen
    statistics: dict[str, Params]
    gradients: tuple[Tensor, ...]


class Stepper:
    """Applies a trainee's moves. `mapped`: every tensor has a leading axis of clients, each going its own way."""

    def __init__(
        self, net: Net, moves: Sequence[Move], training: Training, mapped: bool, pace: Pace | None = None
    ) -> None:
        self._net, self._moves, self._training, self.mapped = net, moves, training, mapped
        self._pace: Callable[[Parts, Clock], Tensor] | None = None
        if pace is not None:
            self._pace = self._for_cohort(self.lift(lambda parts, clock: torch.as_tensor(pace(parts, clock))))
        self._pulls: dict[int, Callable[..., Pull]] = {}
        self._decays: dict[int, Callable[[Clock], Tensor]] = {}
        for number, move in enumerate(moves):
            if isinstance(move, Descend):
                self._pulls[number] = self._for_cohort(partial(self._pull, number, move))
            elif callable(move.decay):
                self._decays[number] = self._for_cohort(self.lift(move.decay))

    def lift(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function of one client as a function of the stacked cohort, where there is one."""
        return over_clients(function) if self.mapped else function

    def _for_cohort(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function that was lifted, without most of its Python; of one client it may look at numbers."""
        return Recorded(function) if self.mapped else function

    def __call__(self, state: State, batch: Batch, keys: Tensor, active: Tensor | None) -> tuple[State, Seen]:
        """The state after one step and what was seen in it; a client that is not `active` stays as it is."""
        new, seen = State(dict(state.parts), dict(state.momentum)), Seen({}, {}, {})
        for number, move in enumerate(self._moves):
            if isinstance(move, Descend):
                for all_seen, now in zip(seen, self._descend(number, move, new, batch, keys), strict=True):
                    all_seen.update(now)
            else:
                self._follow(number, move, new.parts, batch.clock)
        return (new if active is None else _only(active, new, state)), seen

    def _descend(self, number: int, move: Descend, state: State, batch: Batch, keys: Tensor) -> Seen:
        """Move the parts against the gradient of the loss, and their buffers with the passes it made."""
        parts, trained = state.parts, self._trained(move, state.parts)
        seen, statistics, gradients = self._pulls[number](parts, batch, keys)
        values = [value for params in trained.values() for value in params.values()]
        with torch.no_grad():
            rate, before = self._rate(parts, batch.clock), state.momentum.get(number)
            pulled = self._pulled(gradients)
            if bool(pulled.any()):
                updated, momentum = self._update(values, list(gradients), before, rate)
                if not bool(pulled.all()):
                    before = before or [torch.zeros_like(one) for one in momentum]
                    updated, momentum = _choose(pulled, updated, values), _choose(pulled, momentum, before)
            else:
                updated = values
                momentum = before or [torch.zeros_like(one) for one in values if self._training.momentum]
            state.momentum[number] = momentum
        new = iter(updated)
        for part, params in trained.items():
            parts[part] = {**parts[part], **{name: next(new) for name in params}}
        for part, buffers in statistics.items():
            parts[part] = {**parts[part], **buffers}
        return seen

    def _pull(self, number: int, move: Descend, parts: Parts, batch: Batch, keys: Tensor) -> Pull:
        """Where a loss pulls the parts that its move trains."""
        trained = tree_map(lambda value: value.detach().requires_grad_(), self._trained(move, parts))

        def losses(trained: Parts, parts: Parts, batch: Batch, key: Tensor) -> tuple[Seen, dict[str, Params]]:
            current = parts | {part: {**parts[part], **params} for part, params in trained.items()}
            net = self._net.pass_with(key)
            return Seen(move.loss(net, current, batch), net.notes, net.guesses), net.statistics(current)

        seen, statistics = self.lift(losses)(trained, parts, batch, keys + number)
        values = [*leaves(trained)]
        total = sum((term.sum() for term in seen.terms.values()), torch.zeros((), device=values[0].device))
        if total.requires_grad or self.mapped or not self._net.may_leave_rows:
            gradients = torch.autograd.grad(total, values, allow_unused=True, materialize_grads=True)
        else:  # no row counts
            gradients = ()
        return Pull(tree_map(Tensor.detach, seen), tree_map(Tensor.detach, statistics), gradients)

    def _trained(self, move: Descend, parts: Parts) -> Parts:
        """What a move trains of its parts."""
        return {
            part: {name: value for name, value in parts[part].items() if self._trains(name, value)}
            for part in move.parts
        }

    def _trains(self, name: str, value: Tensor) -> bool:
        return value.is_floating_point() and name not in self._net.buffers

    def _rate(self, parts: Parts, clock: Clock) -> Tensor:
        """The learning rate now, one a client where the method has a pace of its own."""
        rate = self._training.lr
        if self._training.decay != "none":
            round, rounds = (int(one.flatten()[0]) for one in (clock.round, clock.rounds))  # the same for all clients
            rate = self._training.rate(round, rounds)
        if self._pace is None:
            return torch.tensor(rate)
        return rate * self._pace(parts, clock)

    def _pulled(self, gradients: Sequence[Tensor]) -> Tensor:
        """Where there is any gradient at all: a loss without rows moves nothing, not by weight decay either."""
        if not gradients:
            return torch.tensor(False)
        small, *others = sorted(gradients, key=Tensor.numel)  # the first nearly always answers
        pulled = self._flat(small).any(-1)
        for gradient in others:
            if bool(pulled.all()):
                break
            pulled = pulled | self._flat(gradient).any(-1)
        return pulled

    def _flat(self, gradient: Tensor) -> Tensor:
        """All numbers of a client along the last axis, also where a parameter is a single number."""
        return gradient.reshape(*gradient.shape[: int(self.mapped)], -1)

    def _update(
        self, values: Tensors, gradients: Tensors, momentum: Tensors | None, rate: Tensor
    ) -> tuple[Tensors, Tensors]:
        """Stochastic gradient descent with clipping, weight decay and momentum, in torch's order."""
        training = self._training
        if training.clip is not None:
            gradients = self._clip(gradients, training.clip)
        rule = Rule(training.momentum, training.weight_decay, training.nesterov)
        return descend(values, gradients, momentum, rate, rule)

    def _clip(self, gradients: Tensors, largest: float) -> Tensors:
        square = sum((self._flat(gradient).square().sum(-1) for gradient in gradients), torch.zeros(()))
        scale = (largest / (square.sqrt() + 1e-6)).clamp(max=1)
        return [gradient * expand_as(scale, gradient) for gradient in gradients]

    def _follow(self, number: int, move: Follow, parts: Parts, clock: Clock) -> None:
        """Move a part's parameters towards the parts it follows; its buffers come from its own passes."""
        decay = self._decays[number](clock) if callable(move.decay) else move.decay
        decay = torch.as_tensor(decay, device=clock.round.device)
        source = {name: value for part in move.of for name, value in parts[part].items()}
        own = parts[move.part]
        names = [name for name, value in own.items() if name in source and self._trains(name, value)]
        moved = follow([own[name] for name in names], [source[name] for name in names], decay)
        parts[move.part] = {**own, **dict(zip(names, moved, strict=True))}


def _choose(where: Tensor, new: Tensors, old: Tensors) -> Tensors:
    return [torch.where(expand_as(where, one), one, two) for one, two in zip(new, old, strict=True)]


def _only(active: Tensor, new: State, old: State) -> State:
    """The new state for active clients, the old one for the others."""

    def choose(new: Tensor, old: Tensor) -> Tensor:
        return new if new is old else torch.where(expand_as(active, new), new, old)

    # A move's momentum is zero before its first step, as torch's is.
    still = {number: [torch.zeros_like(tensor) for tensor in tensors] for number, tensors in new.momentum.items()}
    momentum = {
        number: _choose(active, tensors, old.momentum.get(number) or still[number])
        for number, tensors in new.momentum.items()
    }
    return State(tree_map(choose, new.parts, old.parts), momentum)
