"""From what has passed the gate to the server's next parts, where enough of it has."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from semifed.engine.assemble import Assembly
from semifed.engine.gate import Passed, capped
from semifed.errors import RunError
from semifed.methods.base import Cohort
from semifed.params import Parts, stack


class Circle(NamedTuple):
    """The clients of a round: when, in which places, and how often each client of the run has taken part."""

    round: int
    slots: dict[int, int]
    visits: Tensor  # int64 [clients]


def merge(assembly: Assembly, server: Parts, passed: Passed, circle: Circle) -> tuple[Parts, str]:
    """The server after the round, or as it is and why: too few sound updates, or nobody had anything to read."""
    if reason := _without_quorum(assembly, passed, circle.round):
        return server, reason
    sound, rules = passed.sound, assembly.experiment.gate
    examples = torch.tensor(capped([turn.outcome.examples for turn in sound], rules.most_weight))
    if not bool(examples.any()):
        return server, "no client had anything to read"
    clients = [turn.task.client for turn in sound]
    cohort = Cohort(
        clients=tuple(clients),
        examples=examples,
        visits=circle.visits[clients],
        round=circle.round,
        rounds=assembly.experiment.train.rounds,
        slots=tuple(circle.slots[client] for client in clients),
        server_examples=len(assembly.scenario.server),
        validation=assembly.validation_set(),
    )
    up = stack([turn.outcome.up for turn in sound])
    return assembly.experiment.method.aggregate(assembly.net, server, up, cohort), ""


def _without_quorum(assembly: Assembly, passed: Passed, round: int) -> str:
    """Why a round's updates are not merged, if too few are sound; where the experiment says so, the run ends."""
    rules, sound = assembly.experiment.gate, len(passed.sound)
    asked = sound + len(passed.refused) + len(passed.stragglers)
    needed = max(math.ceil(rules.quorum * asked), 1)
    if sound >= needed:
        return ""
    reason = f"{sound} of {asked} updates are sound, fewer than the {needed} of gate.quorum"
    if rules.without_quorum == "stop":
        lost = list({**passed.refused, **passed.stragglers}.items())
        first = ", ".join(f"client {client}: {why}" for client, why in lost[:3])
        raise RunError(
            f"round {round + 1}: {reason} ({first}); the model of round {round} is kept: see to the clients, "
            "and go on with --resume"
        )
    return reason
