"""The question whether every term of a loss pulls, asked by watching each step of real training."""

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from semifed.batch import Batch
from semifed.conformance.compare import describe
from semifed.conformance.world import World, moments, twin, worlds
from semifed.methods.base import Descend, Follow, Loss, Method, Move, Terms
from semifed.nets.net import Pass
from semifed.params import Params, Parts

STILL = 1e-8
"""A gradient below this is rounding, not a pull."""


def every_term_pulls(method: Method) -> Iterator[str]:
    """Each term of a loss has a gradient on what it trains, and none on a part that only follows."""
    for role, moves in _roles(method):
        descends = {part for move in moves if isinstance(move, Descend) for part in move.parts}
        for part in sorted(_followed(moves) & descends):
            yield f"{role}: part {part} both follows and descends"
    pulls = _Pulls()
    everything = _switched_on(method)
    made = [_watched(world, pulls) for net in ("confident", "normalised") for world in worlds(everything, net)]
    for _ in moments(made):
        yield from pulls.faults
        if not any(pulls.complaints()):
            return
    yield from pulls.complaints()


def _switched_on(method: Method) -> Method:
    """The method with every weight that is 0 raised, so that terms which are off by default are asked too."""
    options: dict[str, Any] = {option.name: getattr(method, option.name) for option in dataclasses.fields(method)}
    raised = {name: 0.01 for name, value in options.items() if isinstance(value, float) and value == 0}
    return type(method)(**(options | raised))


def _roles(method: Method) -> list[tuple[str, tuple[Move, ...]]]:
    return [("client", method.client()), ("server", method.server())]


def _followed(moves: Sequence[Move]) -> set[str]:
    return {move.part for move in moves if isinstance(move, Follow)}


@dataclass
class _Pulls:
    """What is seen of the losses while a method trains: by role, the strongest pull of each term and on each part."""

    of_term: dict[tuple[str, str], float] = field(default_factory=lambda: defaultdict(float))
    on_part: dict[tuple[str, str], float] = field(default_factory=lambda: defaultdict(float))
    largest: dict[tuple[str, str], float] = field(default_factory=lambda: defaultdict(float))
    faults: list[str] = field(default_factory=list)

    def see(self, role: str, name: str, term: Tensor, trained: Parts, followed: Parts) -> None:
        """Take down one term of one step."""
        if term.dim():
            self.faults.append(f"{role}: term {name} is {describe(term)}, but a term is one number")
        self.largest[role, name] = max(self.largest[role, name], float(term.detach().abs().sum()))
        for part, params in trained.items():
            pull = _pull(term, params)
            self.of_term[role, name] = max(self.of_term[role, name], pull)
            self.on_part[role, part] = max(self.on_part[role, part], pull)
        for part, params in followed.items():
            if _pull(term, params) > STILL:
                self.faults.append(f"{role}: term {name} sends a gradient into {part}, which only follows; detach it")

    def complaints(self) -> Iterator[str]:
        """Terms that have never pulled, and parts on which nothing ever has."""
        awake = {name for (_, name), pull in self.of_term.items() if pull > STILL}
        moved = {part for (_, part), pull in self.on_part.items() if pull > STILL}
        for (role, name), pull in self.of_term.items():
            # A term that needs labels is exactly zero where nobody holds any; it must pull in the other role then.
            masked = self.largest[role, name] == 0 and name in awake
            if pull <= STILL and not masked:
                yield f"{role}: term {name} has no gradient on anything that it trains"
        for role, part in self.on_part:
            if part not in moved:
                yield f"{role}: part {part} is trained, but no term pulls on it"


def _pull(term: Tensor, params: Params) -> float:
    """The largest gradient that a term has on these tensors."""
    if not term.requires_grad or not params:
        return 0.0
    found = torch.autograd.grad(term.sum(), list(params.values()), retain_graph=True, allow_unused=True)
    return max((float(gradient.abs().max()) for gradient in found if gradient is not None), default=0.0)


def _watched(world: World, pulls: _Pulls) -> World:
    """The same world with a method whose losses are seen at every step."""
    buffers = world.assembly.net.buffers

    def seen(role: str, moves: Sequence[Move]) -> Callable[[], tuple[Move, ...]]:
        followed = _followed(moves)
        watched = [
            Descend(move.parts, _seen(role, move, followed, buffers, pulls)) if isinstance(move, Descend) else move
            for move in moves
        ]
        return lambda: tuple(watched)

    return world.changed(method=twin(world.method, **{role: seen(role, moves) for role, moves in _roles(world.method)}))


def _seen(role: str, move: Descend, followed: set[str], buffers: frozenset[str], pulls: _Pulls) -> Loss:
    """The loss of a move. Parts that follow are made to feel a gradient, so that one that reaches them is seen."""

    def loss(net: Pass, parts: Parts, batch: Batch) -> Terms:
        feeling = {
            part: {
                name: value.detach().requires_grad_()
                for name, value in parts[part].items()
                if value.is_floating_point() and name not in buffers
            }
            for part in followed
        }
        trained = {
            part: {name: value for name, value in parts[part].items() if value.requires_grad} for part in move.parts
        }
        terms = move.loss(net, parts | {part: parts[part] | params for part, params in feeling.items()}, batch)
        for name, term in terms.items():
            pulls.see(role, name, term, trained, feeling)
        # A term without any gradient would stop the training; tied to what it should train, it is seen to the end.
        tie = sum((value.sum() * 0 for params in trained.values() for value in params.values()), torch.zeros(()))
        return {name: term + tie for name, term in terms.items()}

    return loss
