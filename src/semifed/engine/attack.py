"""Hostile clients in a simulation that send something else than what they have trained.

Every draw depends on the seed, the round and the client alone, so an attack repeats whatever the workers.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from semifed import keys
from semifed.engine.assemble import Assembly
from semifed.engine.gate import idle_upload, scaled, update_norm
from semifed.engine.hostile import hostile_clients
from semifed.engine.local import Absent, Clients, Outcome, Reply, Task
from semifed.params import Parts, tree_map

SENT = ("sign-flip", "scale", "gaussian", "nans", "free-rider")
"""Attacks on what is sent; the others are on the data."""


class Hostile:
    """Clients of whom some send something else than what they have trained."""

    def __init__(self, clients: Clients, assembly: Assembly) -> None:
        self._clients, self._assembly = clients, assembly
        self._hostile = set(hostile_clients(assembly.experiment, assembly.scenario.active().tolist()))

    def present(self, round: int) -> Sequence[int] | None:
        """Whoever is there."""
        return self._clients.present(round)

    def train(self, round: int, tasks: Sequence[Task]) -> list[Outcome | Absent | Reply]:
        """The outcomes, those of hostile clients spoilt."""
        answers = zip(tasks, self._clients.train(round, tasks), strict=True)
        return [
            self._spoilt(round, task, one) if task.client in self._hostile and isinstance(one, Outcome) else one
            for task, one in answers
        ]

    def close(self) -> None:
        """Let go of what the others hold."""
        self._clients.close()

    def _spoilt(self, round: int, task: Task, outcome: Outcome) -> Outcome:
        experiment = self._assembly.experiment
        idle = idle_upload(experiment.method, self._assembly.net, task)
        kind, strength, up = experiment.attack.kind, experiment.attack.strength, outcome.up
        if kind in ("sign-flip", "scale"):
            return outcome._replace(up=scaled(up, idle, strength if kind == "scale" else -strength))
        if kind == "free-rider":
            return outcome._replace(up=idle, terms={name: value or 1.0 for name, value in outcome.terms.items()})
        if kind == "nans":
            return outcome._replace(up=_floats(up, lambda leaf: torch.full_like(leaf, torch.nan)))
        noise = _noise(up, idle, keys.key(experiment.seed, "attack", round, task.client))
        return outcome._replace(up=scaled(noise, idle, strength * update_norm(up, idle) / update_norm(noise, idle)))


def _floats(tree: Any, change: Any) -> Any:
    return tree_map(lambda leaf: change(leaf) if leaf.is_floating_point() else leaf, tree)


def _noise(up: Parts, idle: Parts, key: int) -> Parts:
    """An upload whose update is noise."""
    place = iter(range(2**31))
    moved = tree_map(
        lambda one, two: two + gaussian(keys.key(key, next(place)), one) if one.is_floating_point() else one, up, idle
    )
    return dict(moved)


def gaussian(key: int, like: Tensor) -> Tensor:
    """Normal numbers of a key, in the shape of a tensor (Box and Muller)."""
    pairs = keys.uniform(torch.tensor([key, ~key], device=like.device), like.numel()).double()
    normal = (-2 * (1 - pairs[0]).log()).sqrt() * (2 * math.pi * pairs[1]).cos()
    return normal.to(like).reshape(like.shape)
