"""From what has passed the gate to the server's next parts, where enough of it has.

A robust rule goes before the method's own merging and knows nothing of it: an upload is what an idle client would send
plus an update, and under a rule every client's update becomes the one that the rule finds. Whatever mean a method takes
of equal updates is that update; what differs between clients otherwise (groups, masks) stays as it was.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from semifed.engine.assemble import Assembly
from semifed.engine.gate import Passed, Turn, capped, idle_upload, scaled, update_norm
from semifed.engine.privacy import private_upload
from semifed.engine.robust import centre
from semifed.engine.updates import updates, with_update
from semifed.errors import RunError
from semifed.methods.base import Cohort
from semifed.params import Parts, stack


class Circle(NamedTuple):
    """The clients of a round: when, in which places, and how often each client of the run has taken part."""

    round: int
    slots: dict[int, int]
    visits: Tensor  # int64 [clients]


def merge(assembly: Assembly, server: Parts, passed: Passed, circle: Circle) -> tuple[Parts, dict[str, Any]]:
    """The server after the round, or as it is if too little came, and what the round's row says of it."""
    experiment, sound = assembly.experiment, passed.sound
    if experiment.privacy.on:
        up, told = private_upload(experiment, assembly.net, server, sound, circle.round)
        one = torch.ones(1, dtype=torch.int64)
        nobody = _cohort(assembly, Circle(circle.round, {0: 0}, one), [0], one)
        return experiment.method.aggregate(assembly.net, server, up, nobody), {"skipped": "", "privacy": told}
    if reason := _without_quorum(assembly, passed, circle.round):
        return server, {"skipped": reason}
    examples = torch.tensor(capped([turn.outcome.examples for turn in sound], experiment.gate.most_weight))
    if not bool(examples.any()):
        return server, {"skipped": "no client had anything to read"}
    up, factors = _made_robust(assembly, sound, circle.round)
    facts = {"skipped": "", **({"factors": factors} if factors else {})}
    cohort = _cohort(assembly, circle, [turn.task.client for turn in sound], examples)
    return experiment.method.aggregate(assembly.net, server, up, cohort), facts


def _cohort(assembly: Assembly, circle: Circle, clients: Sequence[int], examples: Tensor) -> Cohort:
    """What the method hears of the clients whose uploads it merges."""
    return Cohort(
        clients=tuple(clients),
        examples=examples,
        visits=circle.visits[clients],
        round=circle.round,
        rounds=assembly.experiment.train.rounds,
        slots=tuple(circle.slots[client] for client in clients),
        server_examples=len(assembly.scenario.server),
        validation=assembly.validation_set(),
    )


def _without_quorum(assembly: Assembly, passed: Passed, round: int) -> str:
    """Why a round's updates are not merged, if too few are sound; where the experiment says so, the run ends."""
    rules, sound = assembly.experiment.gate, len(passed.sound)
    asked = sound + len(passed.refused) + len(passed.stragglers)
    needed = max(math.ceil(rules.quorum * asked), 1)
    reason = f"{sound} of {asked} updates are sound, fewer than the {needed} of gate.quorum"
    rule = assembly.experiment.aggregate
    if sound >= needed:
        moved = sum(1 for turn in passed.sound if _moved(turn)) if rule.fewest() > 1 else 0
        if not moved or moved >= rule.fewest():
            return ""
        reason = f"{moved} updates are fewer than the {rule.fewest()} that {rule.rule} needs"
    if rules.without_quorum == "stop":
        lost = list({**passed.refused, **passed.stragglers}.items())
        first = ", ".join(f"client {client}: {why}" for client, why in lost[:3])
        raise RunError(
            f"round {round + 1}: {reason} ({first}); the model of round {round} is kept: see to the clients, "
            "and go on with --resume"
        )
    return reason


def _moved(turn: Turn) -> bool:
    return turn.outcome.examples > 0 and update_norm(turn.outcome.up, turn.idle) > 0


def _made_robust(assembly: Assembly, sound: list[Turn], round: int) -> tuple[Parts, dict[str, float]]:
    """The stacked uploads as the method is to merge them, and the factors that a rule has given to clients."""
    rule, ups = assembly.experiment.aggregate, [turn.outcome.up for turn in sound]
    moved = [place for place, turn in enumerate(sound) if rule.rule != "mean" and _moved(turn)]
    if not moved:
        return stack(ups), {}
    if rule.rule == "clip":
        norms = {place: update_norm(ups[place], sound[place].idle) for place in moved}
        longest = rule.longest * float(torch.tensor(list(norms.values()), dtype=torch.float64).median())
        factors = {place: min(longest / norm, 1.0) for place, norm in norms.items()}
        shorter = [scaled(up, sound[place].idle, factors.get(place, 1.0)) for place, up in enumerate(ups)]
        return stack(shorter), {str(sound[place].task.client): factor for place, factor in factors.items()}
    up, idle = stack(ups), stack([turn.idle for turn in sound])
    own = None
    if rule.rule == "fltrust":
        task = sound[moved[0]].task
        trusted = assembly.workshop.train_trusted(round, task)
        own = list(updates(stack([trusted]), stack([idle_upload(assembly.experiment.method, assembly.net, task)])))
    one, factors_of = centre(rule, [update[moved] for update in updates(up, idle)], own)
    clients = [str(sound[place].task.client) for place in moved]
    named = dict(zip(clients, factors_of, strict=True)) if factors_of else {}
    return with_update(up, idle, iter(one), torch.tensor(moved, device=one[0].device)), named
