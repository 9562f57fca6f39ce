"""A run is one folder: everything to understand it, to go on with it, and to repeat it.

    experiment.toml          the resolved experiment; runs it again
    environment.json         versions, machine, hashes of what the run must not change, notices
    split.safetensors        who holds which samples and which labels
    holdings.json            how many samples of each class they hold, for display; of no use to a method
    rounds.jsonl             a line a round
    checkpoint.safetensors   everything the next round starts from (and the one before, .previous)
    kept/000012.safetensors  what the clients of round 12 keep for their next visit, if the method has such
    summary.json             best and last, once there is something to sum up
    model.safetensors        the model a run hands out
    overrides.txt            which settings were changed on the way, if any were

Order of writing: a round's line first, then its checkpoint. So a kill leaves at most lines that the
checkpoint does not know yet; resuming drops those and makes them again, the same.
"""

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from filelock import FileLock, Timeout

from semifed import __version__
from semifed.data.scenario import Scenario
from semifed.errors import RunError
from semifed.experiment import Experiment
from semifed.params import Params, Parts
from semifed.results import checkpoint, keep
from semifed.results.checkpoint import Checkpoint
from semifed.results.files import append, write_json, write_tensors, write_whole
from semifed.results.holdings import Holdings
from semifed.results.keep import InMemory, Kept, OnDisk
from semifed.results.record import Row
from semifed.settings import read_toml

_EARLY = {".lock", ".writable", "split.safetensors", "holdings.json", "environment.json", "rounds.jsonl"}
"""What there may be before experiment.toml, which marks a folder as begun."""

_REMNANT = re.compile(
    r"\.split\.safetensors\.\w+\.part|(\.writable|holdings\.json|environment\.json|rounds\.jsonl|experiment\.toml|summary\.json"
    r"|(model|checkpoint\.next)\.safetensors)\.partial"
)
"""What a kill leaves of a file that was being written."""


class RunFolder:
    """One run's folder, locked as long as this process has it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = FileLock(path / ".lock")
        self._history = checkpoint.History("")
        self._needed: set[int] = set()  # rounds that the newest checkpoint needs the files of

    @classmethod
    def create(cls, path: Path, leftover: bool = False) -> "RunFolder":
        """A new folder; with `leftover` also one whose run was killed before it had begun."""
        check_free(path, leftover)
        folder = cls._open(path)
        try:
            check_free(path, leftover)  # again: another run may have been here until we had the lock
        except RunError:
            folder.close()
            raise
        return folder

    @classmethod
    def reopen(cls, path: Path) -> "RunFolder":
        """The folder of a run that was begun."""
        return cls._open(path)

    @classmethod
    def _open(cls, path: Path) -> "RunFolder":
        try:
            path.mkdir(parents=True, exist_ok=True)
            folder = cls(path)
            folder._lock.acquire(blocking=False)
        except Timeout:
            raise RunError(f"{path}: is in use by another run; wait for it or give another --out") from None
        except (OSError, ValueError) as error:
            raise RunError(f"{path}: cannot be written: {_reason(error)}; mend that or give another --out") from None
        try:
            remnants = [entry for entry in path.iterdir() if _REMNANT.fullmatch(entry.name)]
            for entry in [*remnants, *(path / "kept").glob("*.partial")]:
                entry.unlink()
            write_whole(path / ".writable", b"0" * 4096)  # a full or read-only disk shows now, not in round 50
            (path / ".writable").unlink()
        except (OSError, RunError) as error:
            folder.close()
            raise RunError(f"{path}: cannot be written: {_reason(error)}; mend that or give another --out") from None
        return folder

    def __enter__(self) -> "RunFolder":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let others have the folder."""
        self._lock.release()

    def begin(
        self, experiment: Experiment, split: Scenario, environment: Mapping[str, Any], holdings: Holdings | None = None
    ) -> None:
        """Write what is known before the first round; the experiment last, since it marks a folder as begun."""
        split.save(self.path / "split.safetensors")
        if holdings:
            write_whole(self.path / "holdings.json", holdings.dump())
        write_json(self.path / "environment.json", environment)
        write_whole(self.path / "rounds.jsonl", b"")
        write_whole(self.path / "experiment.toml", experiment.toml().encode())
        self._history = checkpoint.History(split.digest())

    def check_space(self) -> None:
        """Look, once there is a checkpoint, whether two more and the model have room, so that round 50 has too."""
        needed = 3 * (self.path / "checkpoint.safetensors").stat().st_size
        if shutil.disk_usage(self.path).free < needed:
            raise RunError(f"{self.path}: No space left on the disk, {needed:,} more bytes are needed; make room")

    def split(self) -> Scenario:
        """Who holds what in this run."""
        return Scenario.load(self.path / "split.safetensors")

    def experiment(self) -> dict[str, Any]:
        """The tables of the experiment in the folder."""
        return read_toml(self.path / "experiment.toml")

    def environment(self) -> dict[str, Any]:
        """What the run was begun with."""
        return read_json(self.path / "environment.json")

    def versions(self) -> dict[str, str]:
        """Packages with their versions, as the run was last gone on with."""
        begun = self.environment()
        return {**begun, **{name: now for one in begun.get("resumed", []) for name, now in one["versions"].items()}}

    def note_versions(self, round: int, versions: Mapping[str, str]) -> None:
        """Write down after which round packages of other versions took over."""
        if versions:
            begun = self.environment()
            resumed = [*begun.get("resumed", []), {"round": round, "versions": dict(versions)}]
            write_json(self.path / "environment.json", {**begun, "resumed": resumed})

    def override(self, experiment: Experiment, round: int, changes: str) -> None:
        """Go on with a changed experiment, and keep what was changed."""
        append(self.path / "overrides.txt", f"after round {round}: {changes}\n".encode())
        write_whole(self.path / "experiment.toml", experiment.toml().encode())

    def add_row(self, row: Row) -> None:
        """Append one round's line, durably."""
        line = json.dumps(row).encode() + b"\n"
        append(self.path / "rounds.jsonl", line)
        self._history.add(line)

    def save(self, round: int, state: Parts, experiment: Experiment) -> None:
        """Write a checkpoint of what the next round starts from."""
        checkpoint.save(self.path, round, state, self._history.after(round), experiment.toml())
        before, self._needed = self._needed, keep.rounds_of(state)
        keep.tidy(self.path / "kept", before | self._needed, round)

    def kept(self, experiment: Experiment, state: Parts | None = None) -> Kept:
        """What clients have kept, as a checkpoint says; of a method that keeps something it lies in files."""
        if not experiment.method.keeps:
            return InMemory({})
        nobody = torch.zeros(experiment.scenario.clients, dtype=torch.int64)
        return OnDisk(self.path / "kept", (state or {}).get("last", nobody))

    def load(self, split: Scenario, previous: bool = False) -> Checkpoint | None:
        """The newest checkpoint, or the one before; None if the run was killed before it wrote its first."""
        self._history = checkpoint.History(split.digest())
        return checkpoint.load(self.path, split.digest(), previous)

    def rewind(self, to: Checkpoint) -> None:
        """Let the folder stand at a checkpoint; lines it does not know are dropped, to be made again."""
        checkpoint.promote(self.path, to)
        lines = b"".join(to.lines)
        if (self.path / "rounds.jsonl").read_bytes() != lines:
            write_whole(self.path / "rounds.jsonl", lines)
        self._history = to.history
        self._needed = keep.rounds_in(self.path / "kept")  # of the checkpoint before it nothing is known here

    def mark_running(self) -> None:
        """A summary of the time before must not pass for the result of a run that goes on."""
        if (path := self.path / "summary.json").exists():
            write_json(path, {**self._summary(), "status": "running"})

    def sum_up(self, summary: Mapping[str, Any], model: Params) -> None:
        """Write the model and the summary that names its hash, unless they are there."""
        path = self.path / "model.safetensors"
        if path.exists() and self._summary() == summary:
            return
        if summary["rounds"]:
            write_tensors(path, model, {"semifed": __version__, "model": str(summary["model"])})
        write_json(self.path / "summary.json", summary)

    def _summary(self) -> dict[str, Any]:
        """The summary that is there; it can be made again, so a damaged one is as good as none."""
        try:
            return read_json(self.path / "summary.json")
        except RunError:
            return {}


def check_free(path: Path, leftover: bool = False) -> None:
    """Refuse a folder that holds anything.

    With `leftover` it must be there and may hold what is written before a run has begun: going on with a
    mistyped name would otherwise start from zero without a word.
    """
    try:
        if leftover and not path.exists():
            raise RunError(f"{path}: there is no such run to go on with; mend the name or leave out --resume")
        if path.exists() and not path.is_dir():
            raise RunError(f"{path}: is a file; give another --out")
        names = {entry.name for entry in path.iterdir()} if path.exists() else set()
    except (OSError, ValueError) as error:
        raise RunError(f"{path}: cannot be read: {_reason(error)}; give another --out") from None
    names = {name for name in names if not _REMNANT.fullmatch(name)}
    if names <= (_EARLY if leftover else {".lock"}):
        return
    if names <= _EARLY or "experiment.toml" in names:
        raise RunError(f"{path}: is there already; go on with --resume or give another --out")
    raise RunError(f"{path}: holds other things and is not the folder of a run; give another --out")


def is_begun(path: Path) -> bool:
    """Whether there is a run to go on with."""
    try:
        return (path / "experiment.toml").exists()
    except (OSError, ValueError):
        return False


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def read_json(path: Path) -> dict[str, Any]:
    """The content of a JSON file of a run."""
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise RunError(f"{path}: cannot be read: {error.strerror}; put it back from a copy") from None
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise RunError(f"{path}: is damaged; put it back from a copy")
    return content


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
