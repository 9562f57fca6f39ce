"""A run is one folder: everything to understand it, to go on with it, and to repeat it.

    experiment.toml          the resolved experiment; runs it again
    environment.json         versions, machine, split hash, notices
    split.safetensors        who holds which samples and which labels
    rounds.jsonl             a line a round
    checkpoint.safetensors   everything the next round starts from (and the one before, .previous)
    summary.json             best and last, once there is something to sum up
    model.safetensors        the model a run hands out

Order of writing: a round's line first, then its checkpoint. So a kill leaves at most lines that the
checkpoint does not know yet; resuming drops those and makes them again, the same.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from semifed import __version__
from semifed.data.scenario import Scenario
from semifed.errors import RunError
from semifed.experiment import Experiment
from semifed.params import Params, Parts, flatten, unflatten
from semifed.results.files import read_tensors, write_json, write_tensors, write_whole
from semifed.results.record import Row
from semifed.settings import read_toml

FORMAT = "1"
"""Of the checkpoint; raised when an older one can no longer be read."""


class RunFolder:
    """One run's folder, locked as long as this process has it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = FileLock(path / ".lock")

    @classmethod
    def create(cls, path: Path) -> "RunFolder":
        """A new folder; one that is there already is never touched unless it is empty."""
        if path.exists() and not path.is_dir():
            raise RunError(f"{path}: is a file; give another --out")
        if path.is_dir() and any(path.iterdir()):
            raise RunError(f"{path}: is there already; go on with --resume or give another --out")
        return cls._open(path)

    @classmethod
    def reopen(cls, path: Path) -> "RunFolder":
        """A folder to go on with; one that was never begun is begun now."""
        foreign = path.is_dir() and any(path.iterdir()) and not (path / ".lock").exists()
        if foreign and not (path / "experiment.toml").exists():
            raise RunError(f"{path}: is not a run folder; nothing to resume there")
        return cls._open(path)

    @classmethod
    def _open(cls, path: Path) -> "RunFolder":
        try:
            path.mkdir(parents=True, exist_ok=True)
            folder = cls(path)
            folder._lock.acquire(blocking=False)
            write_whole(path / ".writable", b"0" * 4096)  # a full or read-only disk shows now, not in round 50
            (path / ".writable").unlink()
        except Timeout:
            raise RunError(f"{path}: is in use by another run; wait for it or give another --out") from None
        except OSError as error:
            raise RunError(f"{path}: cannot be written: {error.strerror}; give another --out") from None
        return folder

    def close(self) -> None:
        """Let others have the folder."""
        self._lock.release()

    @property
    def begun(self) -> bool:
        """Whether there is an experiment in the folder."""
        return (self.path / "experiment.toml").exists()

    def begin(self, experiment: Experiment, split: Scenario, environment: Mapping[str, Any]) -> None:
        """Write what is known before the first round; the experiment last, since it marks a folder as begun."""
        split.save(self.path / "split.safetensors")
        write_json(self.path / "environment.json", environment)
        write_whole(self.path / "rounds.jsonl", b"")
        write_whole(self.path / "experiment.toml", experiment.toml().encode())

    def split(self) -> Scenario:
        """Who holds what in this run."""
        return Scenario.load(self.path / "split.safetensors")

    def experiment(self) -> dict[str, Any]:
        """The tables of the experiment in the folder."""
        return read_toml(self.path / "experiment.toml")

    @property
    def has_checkpoint(self) -> bool:
        """Whether a checkpoint was ever written."""
        return any(self.path.glob("checkpoint*.safetensors"))

    def overridden(self, experiment: Experiment, changes: str) -> None:
        """Go on with a changed experiment, and keep what was changed."""
        with (self.path / "overrides.txt").open("a", encoding="utf-8") as file:
            file.write(f"after round {len(self.rows())}: {changes}\n")
        write_whole(self.path / "experiment.toml", experiment.toml().encode())

    def add_row(self, row: Row) -> None:
        """Append one round's line, durably."""
        try:
            with (self.path / "rounds.jsonl").open("ab") as file:
                file.write(json.dumps(row).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise RunError(f"{self.path / 'rounds.jsonl'}: cannot be written: {error.strerror}") from None

    def rows(self) -> list[Row]:
        """The lines of all rounds so far; a last line that was cut off is not one."""
        try:
            lines = (self.path / "rounds.jsonl").read_bytes().split(b"\n")
        except OSError:
            raise RunError(f"{self.path / 'rounds.jsonl'}: is missing or cannot be read") from None
        try:
            return [json.loads(line) for line in lines[:-1]]
        except ValueError:
            raise RunError(f"{self.path / 'rounds.jsonl'}: is damaged") from None

    def save(self, round: int, state: Parts) -> None:
        """Write a checkpoint of what the next round starts from; the one before stays beside it."""
        path, fresh = self.path / "checkpoint.safetensors", self.path / "checkpoint.next.safetensors"
        write_tensors(fresh, flatten(state), {"format": FORMAT, "semifed": __version__, "round": str(round)})
        if path.exists():
            path.replace(self.path / "checkpoint.previous.safetensors")
        fresh.replace(path)

    def load(self, previous: bool = False) -> tuple[int, Parts, list[Row]]:
        """The newest checkpoint (or the one before it): its round, its state, and the rows that it knows of."""
        tensors, facts = self._read_checkpoint("checkpoint.previous" if previous else "checkpoint")
        if facts.get("format") != FORMAT:
            raise RunError(
                f"{self.path}: the checkpoint is of format {facts.get('format')} (semifed {facts.get('semifed')}), "
                f"this is format {FORMAT} (semifed {__version__}); go on with that version"
            )
        round, rows = int(facts["round"]), self.rows()
        if len(rows) < round:
            raise RunError(f"{self.path / 'rounds.jsonl'}: has {len(rows)} rounds, the checkpoint {round}; it was cut")
        known = b"".join(json.dumps(row).encode() + b"\n" for row in rows[:round])
        if (self.path / "rounds.jsonl").read_bytes() != known:  # later rows, or one that was cut off
            write_whole(self.path / "rounds.jsonl", known)
        return round, unflatten(tensors), rows[:round]

    def _read_checkpoint(self, name: str) -> tuple[Params, dict[str, str]]:
        path = self.path / f"{name}.safetensors"
        between = self.path / "checkpoint.next.safetensors"
        if name == "checkpoint" and not path.exists() and between.exists():
            path = between  # killed between the two renamings of `save`
        try:
            return read_tensors(path)
        except RunError as error:
            if name == "checkpoint" and (self.path / "checkpoint.previous.safetensors").exists():
                raise RunError(f"{error}; the one before it is there: --resume --previous") from None
            raise RunError(f"{error}; this run cannot go on, start it anew in another folder") from None

    def sum_up(self, summary: Mapping[str, Any], model: Params) -> None:
        """Write the model and the summary that names its hash."""
        facts = {"semifed": __version__, "model": str(summary["model"])}
        write_tensors(self.path / "model.safetensors", model, facts)
        write_json(self.path / "summary.json", summary)


def difference(old: Mapping[str, Any], new: Mapping[str, Any], place: str = "") -> list[str]:
    """Which settings differ between two experiments, as 'key: old -> new'."""
    found = []
    for name in dict.fromkeys([*old, *new]):
        path = f"{place}.{name}" if place else name
        one, two = old.get(name), new.get(name)
        if isinstance(one, Mapping) and isinstance(two, Mapping):
            found += difference(one, two, path)
        elif _plain(one) != _plain(two):
            found.append(f"{path}: {one} -> {two}")
    return found


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
