"""Chunks of clients as bytes: what worker processes and clusters are handed, and what they hand back."""

import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from semifed.engine.blame import own_fault
from semifed.engine.local import Outcome, Task, Workshop
from semifed.errors import SemifedError
from semifed.experiment import Experiment
from semifed.params import Parts, place
from semifed.payload import pack, unpack

Chunk = list[tuple[int, bytes, bytes, int]]
"""Of each client its number, what goes down to it, what it has kept and its visits."""

Answer = list[tuple[bytes, bytes, int, dict[str, float], dict[str, Any], dict[str, float]]]
"""Of each client what comes up, what it keeps, and what was counted."""


def cut(tasks: Sequence[Task], size: int) -> list[Sequence[Task]]:
    """The tasks in chunks of a size; the last may be smaller."""
    return [tasks[start : start + size] for start in range(0, len(tasks), size)]


def pack_chunks(tasks: Sequence[Task], size: int) -> list[Chunk]:
    """The chunks to hand out; what several clients receive is packed once and is the same object in all."""
    once = packer()
    return [[(one.client, once(one.down), once(one.kept), one.visits) for one in chunk] for chunk in cut(tasks, size)]


def packer() -> Callable[[Parts], bytes]:
    """A `pack` that knows what it has packed before: most clients receive the same thing."""
    packed: dict[Any, bytes] = {}

    def once(parts: Parts) -> bytes:
        own = _identity(parts)
        if own not in packed:
            packed[own] = pack(parts)
        return packed[own]

    return once


def train_chunk(workshop: Workshop, round: int, tasks: Chunk) -> Answer:
    """Train a chunk as it came."""
    distinct = {id(down): down for _, down, _, _ in tasks}
    received = {own: unpack(down) for own, down in distinct.items()}
    chunk = [Task(client, received[id(down)], unpack(kept), visits) for client, down, kept, visits in tasks]
    outcomes = workshop.train(round, chunk)
    return [(pack(one.up), pack(one.kept), one.examples, one.terms, one.notes, dict(one.audit)) for one in outcomes]


def read_answers(answers: Iterable[Answer | Exception], device: torch.device) -> list[Outcome]:
    """The outcomes in the order of the answers; the first error among them is raised."""
    sound = []
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
        sound.append(answer)
    return [
        Outcome(place(unpack(up), device), unpack(kept), examples, terms, notes, audit)
        for answer in sound
        for up, kept, examples, terms, notes, audit in answer
    ]


def that_can_be_sent(error: Exception, experiment: Experiment | None = None) -> Exception:
    """An error in a form that another process can surely read: one of a user's own code as its place there."""
    if isinstance(error, SemifedError):
        return error
    fault = own_fault(error, experiment.method, experiment.net) if experiment else None
    return fault or RuntimeError(f"in a worker process: {traceback.format_exc()}")


def _identity(tree: Any) -> Any:
    """Equal for trees of the same names and the very same tensors."""
    if isinstance(tree, Mapping):
        return tuple((name, _identity(branch)) for name, branch in tree.items())
    return tuple(map(_identity, tree)) if isinstance(tree, tuple) else id(tree)
