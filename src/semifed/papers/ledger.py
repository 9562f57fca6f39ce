"""The ledger: of every run of a cell its scores, when and with what it was made; small JSON files, one a preset.

A run belongs to every cell whose settings it has: the ledger says the settings of a run (those that are not the
default), so a cell that is changed later shows as not run, and one experiment that stands in two tables is run once.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from filelock import FileLock

from semifed.errors import RunError, SettingError
from semifed.experiment import Experiment
from semifed.results.collection import StoredRun, flat
from semifed.results.files import write_json

_UNMOVED = ("seed", "engine.", "train.checkpoint_every")

Settings = dict[str, Any]


class Entry(NamedTuple):
    """One run: its settings, its seed, and what is known of it."""

    settings: Settings
    seed: int
    models: dict[str, dict[str, float]]  # by model: last, best, kept; and the rounds of the latter two
    facts: dict[str, Any]  # date, commit, rounds, bytes, seconds, split, semifed


def home() -> Path:
    """Where the ledger is: in the package if it is installed, else in the project's folder."""
    inside = Path(__file__).parent / "ledger"
    return inside if inside.is_dir() else Path(__file__).parents[3] / "docs" / "results" / "ledger"


def settings_of(experiment: Experiment) -> Settings:
    """What makes an experiment: the settings that are not the default, without the seed and the engine's."""
    own, default = experiment.tables(), Experiment().tables()
    default["method"] = {"name": own["method"]["name"], **_defaults(experiment)}
    plain, usual = (flat(json.loads(json.dumps(tables))) for tables in (own, default))
    always = ("data", "method.name", "net.name")
    return {
        key: value
        for key, value in plain.items()
        if not key.startswith(_UNMOVED) and (key in always or value != usual.get(key))
    }


def _defaults(experiment: Experiment) -> dict[str, Any]:
    return dict(vars(type(experiment.method)()))


def read(folder: Path | None = None, begins: bool = False) -> list[Entry]:
    """Every run in the ledger; a folder of one's own must be there, unless the ledger begins with this."""
    if folder and not begins and not folder.is_dir():
        raise SettingError(f"--ledger: there is no folder {folder}; give that of a ledger, or begin one by --record")
    found = []
    for path in sorted((folder or home()).glob("*.json")):
        for run in _read_file(path):
            facts = {name: value for name, value in run.items() if name not in ("settings", "seed", "models")}
            found.append(Entry(run["settings"], run["seed"], run["models"], facts))
    return found


def _read_file(path: Path) -> list[dict[str, Any]]:
    try:
        runs: list[dict[str, Any]] = json.loads(path.read_bytes())["runs"]
        if not all({"settings", "seed", "models"} <= run.keys() for run in runs):
            raise ValueError("a run lacks its settings, seed or models")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunError(f"{path}: is not a file of the ledger ({error}); put it back from git") from None
    return runs


def unfit(run: StoredRun) -> str:
    """Why a run cannot fill a cell; empty if it can."""
    if not run.done:
        return "not finished"
    if run.changed:
        return f"changed on the way, {run.changed}; run it anew"
    try:
        Experiment.of(run.experiment)
    except SettingError as error:  # a method of the user's own, or an older file
        return str(error)
    return ""


def entry(run: StoredRun) -> Entry:
    """What the ledger keeps of a finished run."""
    facts = {
        "date": str(run.environment.get("begun", ""))[:10],
        "commit": run.environment.get("commit"),
        "semifed": run.environment.get("semifed"),
        "rounds": len(run.rows),
        "status": run.status,
        "bytes": run.summary["bytes"],
        "seconds": round(run.summary["seconds"], 1),
        "split": str(run.environment.get("split", ""))[:16],
    }
    return Entry(settings_of(Experiment.of(run.experiment)), run.seed, _scores(run), facts)


def _scores(run: StoredRun) -> dict[str, dict[str, float]]:
    """Accuracy of each model in the last round, in the best, and in the one of the lowest test loss."""
    found = {}
    for model, places in run.summary["models"].items():
        tested = [row for row in run.rows if model in row["models"] and row["models"][model]["loss"] is not None]
        kept = min(tested, key=lambda row: row["models"][model]["loss"]) if tested else None
        found[model] = {
            "last": round(places["last"]["accuracy"], 4),
            "best": round(places["best"]["accuracy"], 4),
            "best_round": places["best"]["round"],
            "kept": round(kept["models"][model]["accuracy"], 4) if kept else places["last"]["accuracy"],
            "kept_round": kept["round"] if kept else places["last"]["round"],
        }
    return found


def record(name: str, runs: Iterable[StoredRun], folder: Path | None = None) -> int:
    """Take finished runs into the file of a preset, in place of older ones of the same settings and seed."""
    path = (folder or home()) / f"{name.replace('/', '-')}.json"
    new = [entry(run) for run in runs if not unfit(run)]
    if not new:
        return 0
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.parent / ".lock"):  # else of two that record at once one loses its runs
            known = {
                _identity(run["settings"], run["seed"]): run for run in (_read_file(path) if path.exists() else [])
            }
            for one in new:
                content = {"settings": one.settings, "seed": one.seed, "models": one.models, **one.facts}
                known[_identity(one.settings, one.seed)] = content
            write_json(path, {"preset": name, "runs": [known[identity] for identity in sorted(known)]})
    except OSError as error:
        raise RunError(f"{path}: cannot be written: {error.strerror}; give another --ledger") from None
    return len(new)


def _identity(settings: Mapping[str, Any], seed: int) -> str:
    return f"{json.dumps(settings, sort_keys=True)} {seed:06d}"


class Book:
    """Runs by settings: those of the ledger, and on top those of some folders."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._runs: dict[str, dict[int, Entry]] = {}
        for one in entries:
            self._runs.setdefault(json.dumps(one.settings, sort_keys=True), {})[one.seed] = one

    def of(self, experiment: Experiment) -> dict[int, Entry]:
        """The runs of an experiment by seed."""
        found = self._runs.get(json.dumps(settings_of(experiment), sort_keys=True), {})
        return dict(sorted(found.items()))
