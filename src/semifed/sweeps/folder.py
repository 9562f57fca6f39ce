"""The folder of a sweep: sweep.json says the runs, runs/<name>/ has each, logs/<name>.txt what it said beside."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from semifed import __version__
from semifed.errors import RunError, SettingError
from semifed.experiment import Experiment
from semifed.nets.zoo import AUTO
from semifed.results.collection import RUNS, SWEEP_FILE, SWEEP_LOCK
from semifed.results.files import write_json
from semifed.results.folder import difference, is_begun, read_json
from semifed.settings import read_toml
from semifed.sweeps.grid import Axis, Point

LOGS = "logs"
_NAME = re.compile(r"[\w,=+-][\w.,=+-]*", re.ASCII)


@contextmanager
def taken(path: Path) -> Iterator[None]:
    """Have the folder of a sweep to oneself."""
    _check_place(path)  # before it has a lock of ours
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path / SWEEP_LOCK)
        lock.acquire(blocking=False)
        (path / SWEEP_LOCK).touch()  # `semifed watch` goes by its age
    except Timeout:
        raise RunError(f"{path}: is in use by another sweep; wait for it or give another --out") from None
    except (OSError, ValueError) as error:
        raise RunError(f"{path}: cannot be written: {error}; mend that or give another --out") from None
    try:
        yield
    finally:
        lock.release()


def record(path: Path, points: Sequence[Point], over: Sequence[Axis]) -> None:
    """Write which runs there are; those that an earlier call has begun stay, and must be what they were."""
    check(path, points)
    before, varied = _entries(path), _over(path)
    entries = {**before, **{point.name: point.experiment.tables() for point in points}}
    content = {
        "semifed": __version__,
        "over": {**varied, **{one.key: list(dict.fromkeys([*varied.get(one.key, ()), *one.values])) for one in over}},
        "runs": [{"name": name, "experiment": tables} for name, tables in entries.items()],
    }
    if not (path / SWEEP_FILE).exists() or read_json(path / SWEEP_FILE) != _plain(content):
        write_json(path / SWEEP_FILE, content)
    for name in (RUNS, LOGS):
        (path / name).mkdir(exist_ok=True)


def check(path: Path, points: Sequence[Point]) -> None:
    """Whether these runs can be made in this folder, or go on there."""
    _check_place(path)
    before = _entries(path)
    for point in points:
        _check_same(path, point, before)


def recorded(path: Path) -> list[Point]:
    """The runs of a sweep that was begun, to go on with them."""
    entries = _entries(path)
    if not entries:
        raise SettingError(f"{path}: there is no sweep to go on with; give an experiment and --over")
    return [Point(name, Experiment.of(tables)) for name, tables in entries.items()]


def _entries(path: Path) -> dict[str, Any]:
    if not (path / SWEEP_FILE).is_file():
        return {}
    try:
        entries = {run["name"]: dict(run["experiment"]) for run in read_json(path / SWEEP_FILE)["runs"]}
    except (KeyError, TypeError, ValueError):
        raise RunError(f"{path / SWEEP_FILE}: is damaged; put it back from a copy") from None
    strange = next((name for name in entries if not isinstance(name, str) or not _NAME.fullmatch(name)), None)
    if strange is not None:  # it would be a folder anywhere
        raise RunError(f"{path / SWEEP_FILE}: {str(strange)[:80]!r} is no name of a run; put it back from a copy")
    return entries


def _over(path: Path) -> dict[str, list[str]]:
    """What the runs that are there were varied over."""
    over = read_json(path / SWEEP_FILE).get("over", {}) if (path / SWEEP_FILE).is_file() else {}
    if not isinstance(over, dict) or not all(isinstance(values, list) for values in over.values()):
        raise RunError(f"{path / SWEEP_FILE}: is damaged; put it back from a copy")
    return over


def _check_place(path: Path) -> None:
    known = {SWEEP_LOCK, f"{SWEEP_FILE}.partial"}  # the second is what a kill leaves
    try:
        foreign = path.is_dir() and not (path / SWEEP_FILE).exists() and {one.name for one in path.iterdir()} - known
    except (OSError, ValueError) as error:
        raise RunError(f"{path}: cannot be read: {error}; mend that or give another --out") from None
    if foreign:
        raise RunError(f"{path}: holds other things and is not the folder of a sweep; give another --out")


def _check_same(path: Path, point: Point, before: dict[str, Any]) -> None:
    """A run keeps its experiment: another one under the same name would mix two in one table."""
    folder, given = path / RUNS / point.name, before.get(point.name)
    old = read_toml(folder / "experiment.toml") if is_begun(folder) else given
    if old is None:
        return
    now = point.experiment.tables()
    # Where no net is named a run has chosen one, and what it has chosen stands.
    unnamed = all(tables.get("net", {}).get("name", AUTO) == AUTO for tables in (given or old, now))
    with suppress(SettingError):  # settings that are newer than the sweep have their defaults
        old = Experiment.of(old).tables()
    timed = ("engine.mode:", "engine.layout:") if point.experiment.engine.mode == "fastest" else ()
    free = ("engine.workers:", "engine.start:", *timed, *(("net.name:",) if unnamed else ()))
    changes = [one for one in difference(old, now) if not one.startswith(free)]
    if changes:
        raise SettingError(f"{point.name}: the experiment has changed ({'; '.join(changes)}); give another --out")


def _plain(content: Any) -> Any:
    """As it reads back from JSON: tuples are lists there."""
    if isinstance(content, dict):
        return {name: _plain(value) for name, value in content.items()}
    return [_plain(value) for value in content] if isinstance(content, list | tuple) else content
