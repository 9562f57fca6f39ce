"""The gate before merging: what a client sends is looked at, and set aside with a reason if it cannot be used."""

from collections.abc import Sequence
from typing import NamedTuple

from semifed.engine.local import Outcome, Task
from semifed.params import leaves


class Turn(NamedTuple):
    """One client's task and what came of it."""

    task: Task
    outcome: Outcome


def pass_gate(tasks: Sequence[Task], outcomes: Sequence[Outcome]) -> tuple[list[Turn], dict[str, str]]:
    """The turns that are sound, and the reason why by client id for those that are not."""
    turns = [Turn(task, outcome) for task, outcome in zip(tasks, outcomes, strict=True)]
    reasons = {str(turn.task.client): _reason(turn.outcome) for turn in turns}
    sound = [turn for turn in turns if not reasons[str(turn.task.client)]]
    return sound, {client: reason for client, reason in reasons.items() if reason}


def _reason(outcome: Outcome) -> str:
    """Why an outcome is refused; empty if it is not."""
    finite = all(bool(tensor.isfinite().all()) for tree in (outcome.up, outcome.kept) for tensor in leaves(tree))
    return "" if finite else "not finite"
