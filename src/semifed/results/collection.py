"""Many runs read back from their folders: what `compare`, `report`, `figures` and `watch` look at.

    runs = collect([Path("sweeps/table5"), Path("runs/prox")])
    runs[0].experiment["method"]["name"], runs[0].rows[-1]["models"], runs[0].summary["status"]

A folder of a sweep is SWEEP/sweep.json with SWEEP/runs/<name>/, one ordinary folder a run. Reading never locks or
changes anything, so runs that go on can be looked at: a line of rounds.jsonl that is being written is left out.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from semifed.data.scenario import Scenario
from semifed.errors import RunError, SettingError
from semifed.experiment import Experiment
from semifed.results.folder import read_json
from semifed.results.record import Row, scores
from semifed.settings import read_toml

SWEEP_FILE, SWEEP_LOCK, RUNS = "sweep.json", ".sweep.lock", "runs"

_UNMOVED = ("seed", "engine.", "train.checkpoint_every")
"""Settings that do not make another experiment of a run: the seed repeats it, the others change nothing."""

_HARMLESS = ("engine.", "train.checkpoint_every:", "train.rounds:")
"""Settings that may change on the way: the run is then as if it had had them from the beginning."""

_ALWAYS_SAID = ("data", "net.name", "scenario.", "train.rounds")
"""Settings that name a group of runs wherever they differ; others do where runs of one method differ in them."""

_ROW = {"round", "models", "terms", "notes", "bytes", "refused", "seconds"}
"""What every row has."""


@dataclass(frozen=True, eq=False)
class StoredRun:
    """One run as its folder holds it."""

    name: str
    path: Path
    experiment: dict[str, Any]  # nested tables, settings that were left out with their defaults
    rows: list[Row]
    summary: dict[str, Any]  # of a run without one yet: made from its rows, with the status "begun"
    environment: dict[str, Any]
    changed: str = ""  # which settings were others in its first rounds: another experiment than those never changed

    @property
    def method(self) -> str:
        """The name of the method."""
        return str(self.experiment["method"]["name"])

    @property
    def seed(self) -> int:
        """The seed of the run."""
        return int(self.experiment["seed"])

    @property
    def status(self) -> str:
        """finished, collapsed, stopped, failed, running, or begun: no summary yet, so under way or killed."""
        return str(self.summary["status"])

    @property
    def done(self) -> bool:
        """Whether nothing is left to do."""
        return self.status in ("finished", "collapsed")

    @property
    def rounds(self) -> int:
        """The rounds that the experiment asks for."""
        return int(self.experiment["train"]["rounds"])

    @property
    def lot(self) -> tuple[int, str] | None:
        """What two runs must share to be a pair: the seed, and who holds what; None where that is not known."""
        split = self.environment.get("split")
        return (self.seed, str(split)) if split else None

    def split(self) -> Scenario:
        """Who holds what in this run."""
        return Scenario.load(self.path / "split.safetensors")


@dataclass(frozen=True, eq=False)
class Group:
    """Runs of one experiment that differ in the seed alone."""

    label: str
    runs: Sequence[StoredRun]  # by seed


def collect(paths: Iterable[Path | str]) -> list[StoredRun]:
    """The runs in folders of runs and of sweeps, in the order given; a sweep's in the order of its grid."""
    found: dict[Path, StoredRun] = {}
    for path in map(Path, paths):
        for folder in run_folders(path):
            found.setdefault(folder.resolve(), read_run(folder))
    return list(found.values())


def run_folders(path: Path) -> list[Path]:
    """The folders of the runs that are begun: a run's own, a sweep's, or those of all that lie in a folder."""
    return [run for part in parts(path) for run in _begun(part)]


def parts(path: Path) -> list[Path]:
    """The folders of runs and sweeps that are meant: this one, or those that lie in it."""
    try:
        found = [path] if _is_part(path) else sorted(filter(_is_part, path.iterdir()))
    except (OSError, ValueError):  # not there, no folder, or a name that is too long
        raise RunError(f"{path}: there is no such folder; give the folder of a run or of a sweep") from None
    if not found:
        raise RunError(f"{path}: holds no run; give the folder of a run or of a sweep")
    return found


def _is_part(path: Path) -> bool:
    return (path / "experiment.toml").is_file() or (path / SWEEP_FILE).is_file()


def _begun(part: Path) -> list[Path]:
    """A run itself, or the begun runs of a sweep in the order of its grid."""
    if (part / "experiment.toml").is_file():
        return [part]
    inner, order = part / RUNS, {name: place for place, name in enumerate(planned(part))}
    begun = [place for place in inner.iterdir() if (place / "experiment.toml").is_file()] if inner.is_dir() else []
    return sorted(begun, key=lambda place: (order.get(place.name, len(order)), place.name))


def planned(path: Path) -> list[str]:
    """The names of a sweep's runs in the order of its grid, begun or not; none where there is no sweep."""
    file = path / SWEEP_FILE
    try:
        return [str(run["name"]) for run in read_json(file).get("runs", [])] if file.is_file() else []
    except (KeyError, TypeError):
        raise RunError(f"{file}: is damaged; put it back from a copy") from None


def read_run(path: Path) -> StoredRun:
    """One run; what it has not written yet is empty."""
    tables = read_toml(path / "experiment.toml")
    whole, problem = _is_resolved(tables), "is damaged or not of a run; put it back, or give the folder of a run"
    try:
        tables = Experiment.of(tables).tables()
    except SettingError as error:  # a method of the user's own that is not to be had here, or an older file
        problem = str(error)
    if not whole:
        raise RunError(f"{path / 'experiment.toml'}: {problem}")
    summary = {"status": "begun", **_read_if_there(path / "summary.json")}  # before the rows, which may become more
    rows = _read_rows(path / "rounds.jsonl")
    if summary["status"] in ("begun", "running"):  # what it says is older than the rows
        summary |= scores(rows)
    if not summary.keys() >= {"rounds", "models", "bytes", "seconds"}:
        raise RunError(f"{path / 'summary.json'}: is damaged; put it back from a copy")
    environment = _read_if_there(path / "environment.json")
    run = StoredRun(path.name, path, tables, rows, summary, environment, _changed(path / "overrides.txt"))
    if run.done and len(rows) < summary["rounds"]:
        raise RunError(f"{path / 'rounds.jsonl'}: lacks rounds that summary.json counts; put it back from a copy")
    return run


def _is_resolved(tables: Mapping[str, Any]) -> bool:
    """Whether they say what is asked of every run, as the file that a run writes does."""
    method, train = tables.get("method"), tables.get("train")
    named = isinstance(method, Mapping) and "name" in method and isinstance(train, Mapping) and "rounds" in train
    return named and isinstance(tables.get("seed"), int)


def _changed(path: Path) -> str:
    """What was changed on the way and counts, as overrides.txt has it: 'after round 1: client.lr: 0.5 -> 0.1'."""
    lines = path.read_text("utf-8", "replace").splitlines() if path.exists() else []
    return "; ".join(
        line for line in lines if not all(one.startswith(_HARMLESS) for one in line.partition(": ")[2].split("; "))
    )


def _read_if_there(path: Path) -> dict[str, Any]:
    return read_json(path) if path.exists() else {}


def _read_rows(path: Path) -> list[Row]:
    """The whole lines; one that has no end is being written, or was when its run was killed."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RunError(f"{path}: cannot be read: {error.strerror}") from None
    whole = text[: text.rfind(b"\n") + 1]
    try:
        rows = [json.loads(line) for line in whole.splitlines()]
    except ValueError:
        rows = [None]
    if not all(isinstance(row, dict) and row.keys() >= _ROW for row in rows):
        raise RunError(f"{path}: is damaged; put it back from a copy")
    return rows


def groups(runs: Sequence[StoredRun]) -> list[Group]:
    """Runs of one experiment put together, each once, in the order of their first, named by what tells them apart."""
    settings = {run: _essence(run) for run in runs}
    names = _telling(runs, settings)
    found: dict[str, list[StoredRun]] = {}
    for run in runs:
        found.setdefault(json.dumps([settings[run], run.changed], sort_keys=True, default=str), []).append(run)
    labels = [_label(of[0], settings[of[0]], names) for of in found.values()]
    return [
        Group(label, sorted(_once(of), key=lambda run: run.seed))
        for label, of in zip(labels, found.values(), strict=True)
    ]


def _once(runs: Sequence[StoredRun]) -> list[StoredRun]:
    """Without copies: the same run given twice is no second seed. Of a run and what it was before, the later counts."""
    found: dict[Any, StoredRun] = {}
    for run in sorted(runs, key=lambda run: run.lot is None):
        place = run.lot or next((key for key, one in found.items() if _is_copy(run, one)), run.path)
        first = found.setdefault(place, run)
        if not _agree(first, run):
            raise RunError(
                f"{first.path} and {run.path}: experiment, seed and split are the same, the scores are not; give one"
            )
        if (run.done, len(run.rows)) > (first.done, len(first.rows)):
            found[place] = run
    return list(found.values())


def _is_copy(run: StoredRun, other: StoredRun) -> bool:
    """Whether a run that does not say its split is another one once more."""
    return run.seed == other.seed and bool(run.rows) and bool(other.rows) and _agree(run, other)


def _agree(one: StoredRun, other: StoredRun) -> bool:
    """Whether they have the same scores, as far as both have come."""
    if one.done and other.done:
        return bool(one.summary["models"] == other.summary["models"])
    return all(mine["models"] == theirs["models"] for mine, theirs in zip(one.rows, other.rows, strict=False))


def flat(tables: Mapping[str, Any], place: str = "") -> dict[str, Any]:
    """Nested tables as one, with dotted keys."""
    found: dict[str, Any] = {}
    for name, value in tables.items():
        key = f"{place}.{name}" if place else name
        found |= flat(value, key) if isinstance(value, Mapping) else {key: value}
    return found


def _essence(run: StoredRun) -> dict[str, Any]:
    return {key: value for key, value in flat(run.experiment).items() if not key.startswith(_UNMOVED)}


def _differ(key: str, settings: Iterable[Mapping[str, Any]]) -> bool:
    return len({json.dumps(one.get(key), default=str) for one in settings}) > 1


def _telling(runs: Sequence[StoredRun], settings: Mapping[StoredRun, Mapping[str, Any]]) -> list[str]:
    """The settings that tell groups apart, beside the method's name."""
    methods: dict[str, list[Mapping[str, Any]]] = {}
    for run in runs:
        methods.setdefault(run.method, []).append(settings[run])
    return [
        key
        for key in dict.fromkeys(key for one in settings.values() for key in one)
        if key != "method.name"
        and (
            any(_differ(key, of) for of in methods.values())
            or (key.startswith(_ALWAYS_SAID) and _differ(key, settings.values()))
        )
    ]


def unsaid(runs: Sequence[StoredRun]) -> list[str]:
    """The settings in which methods differ beside their own options, and which no label says."""
    settings = {run: _essence(run) for run in runs}
    said = {"method.name", *_telling(runs, settings)}
    keys = dict.fromkeys(key for one in settings.values() for key in one if not key.startswith("method."))
    return [key for key in keys if key not in said and _differ(key, settings.values())]


def _label(run: StoredRun, settings: Mapping[str, Any], names: Sequence[str]) -> str:
    """The method and what tells it apart; a setting by its last word, or in full where two have the same."""
    last = [key.rpartition(".")[2] for key in names]
    short = {key: word if last.count(word) == 1 else key for key, word in zip(names, last, strict=True)}
    said = [f"{short[key]}={_word(settings[key])}" for key in names if settings.get(key) is not None]
    return ", ".join([run.method, *said, *([run.changed] if run.changed else [])])


def _word(value: Any) -> str:
    return "+".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
