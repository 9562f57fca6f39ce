"""Checkpoints: everything the next round starts from, bound to the rounds that led to it.

A checkpoint carries a hash of the split and of all lines of rounds.jsonl before it. So one that comes from
another run, or lines that were edited, are found out, and a run never goes on from what is not its own past.
"""

import hashlib
import itertools
import json
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from semifed import __version__
from semifed.errors import RunError
from semifed.params import Parts, flatten, unflatten
from semifed.results.files import move, read_tensors, write_tensors
from semifed.results.record import Row

FORMAT = "2"
"""Raised when an older checkpoint can no longer be read."""

_NEWEST = "checkpoint.safetensors"
_PREVIOUS = "checkpoint.previous.safetensors"
_NEXT = "checkpoint.next.safetensors"
_SET_ASIDE = "checkpoint.aside.safetensors"


class Checkpoint(NamedTuple):
    """Where a run can go on."""

    file: Path
    round: int
    state: Parts
    lines: list[bytes]  # of rounds.jsonl, those up to the round
    history: "History"
    experiment: dict[str, Any]  # its tables

    def rows(self) -> list[Row]:
        """The rounds so far."""
        return [json.loads(line) for line in self.lines]


class History:
    """The hash of a run's past after each of its rounds, each made from the one before and the round's line."""

    def __init__(self, split: str, lines: Sequence[bytes] = ()) -> None:
        self._hashes = list(itertools.accumulate(lines, _link, initial=split))

    def add(self, line: bytes) -> None:
        """One more round."""
        self._hashes.append(_link(self._hashes[-1], line))

    def after(self, round: int) -> str:
        """The hash after so many rounds."""
        return self._hashes[round]


def _link(before: str, line: bytes) -> str:
    return hashlib.sha256(before.encode() + line).hexdigest()


def save(folder: Path, round: int, state: Parts, history: str, experiment: str) -> None:
    """Write a checkpoint; the one before stays beside it."""
    facts = {"format": FORMAT, "semifed": __version__, "round": str(round), "history": history}
    write_tensors(folder / _NEXT, flatten(state), {**facts, "experiment": experiment})
    if (folder / _NEWEST).exists():
        move(folder / _NEWEST, folder / _PREVIOUS)
    move(folder / _NEXT, folder / _NEWEST)


def load(folder: Path, split: str, previous: bool) -> Checkpoint | None:
    """The newest checkpoint, or the one before it; None if a run was killed before it wrote its first."""
    lines = _lines(folder / "rounds.jsonl")
    if previous:
        return _read(folder / _PREVIOUS, split, lines)
    path = folder / _NEWEST
    if not path.exists() and (folder / _NEXT).exists():
        path = folder / _NEXT  # killed between the two renamings of `save`
    if not path.exists() and not (folder / _PREVIOUS).exists() and not lines:
        return None
    try:
        return _read(path, split, lines)
    except RunError as error:
        raise RunError(f"{error}; {_way_out(folder, split, lines)}") from None


def promote(folder: Path, chosen: Checkpoint) -> None:
    """Make a previous checkpoint the newest; the one in its place is set aside, not deleted."""
    if chosen.file.name == _PREVIOUS:
        if (folder / _NEWEST).exists():
            move(folder / _NEWEST, folder / _SET_ASIDE)
        move(chosen.file, folder / _NEWEST)


def _way_out(folder: Path, split: str, lines: Sequence[bytes]) -> str:
    try:
        round = _read(folder / _PREVIOUS, split, lines).round
    except RunError:
        return "put the file back from a copy, or start the run anew in another folder"
    return f"the checkpoint before it, of round {round}, is good: --resume --previous"


def _read(path: Path, split: str, lines: Sequence[bytes]) -> Checkpoint:
    tensors, facts = read_tensors(path)
    if "format" not in facts:
        raise RunError(f"{path}: is not a checkpoint of Semifed")
    if facts["format"] != FORMAT:
        raise RunError(
            f"{path}: is of format {facts['format']}, written by semifed {facts.get('semifed')}; "
            f"this is semifed {__version__} with format {FORMAT}: go on with that version"
        )
    round = int(facts["round"])
    if len(lines) < round:
        raise RunError(f"{path.parent / 'rounds.jsonl'}: has {len(lines)} rounds, but {path.name} is of round {round}")
    known = list(lines[:round])
    history = History(split, known)
    if history.after(round) != facts["history"]:
        raise RunError(
            f"{path}: does not belong to the rounds.jsonl and split.safetensors beside it: one of them was changed "
            "or comes from another run"
        )
    return Checkpoint(path, round, unflatten(tensors), known, history, tomllib.loads(facts["experiment"]))


def _lines(path: Path) -> list[bytes]:
    """The lines of all rounds so far; a last one that was cut off is not a line."""
    try:
        return [line + b"\n" for line in path.read_bytes().split(b"\n")[:-1]]
    except OSError as error:
        raise RunError(f"{path}: cannot be read: {error.strerror}; put it back from a copy") from None
