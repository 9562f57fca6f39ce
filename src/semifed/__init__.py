"""Semifed: federated semi-supervised learning.

The data flow, and where each step lives:

    data/      1  what there is and who holds it     Dataset -> Scenario -> batches of views
    nets/      2  what is trained                    a net as pure functions over a dict of tensors
    methods/   3  how it is trained                  one file a paper: parts, moves, terms, down, up, kept
    engine/    4  where it runs                      rounds.py is the main loop
    results/   5  what came out                      scores, rows, checkpoints, summaries

An `Experiment` names one of each; `run` makes a `Record` of it, and `collect` reads runs back from their folders.
"""

__version__ = "0.1.0"

from importlib import import_module
from typing import TYPE_CHECKING, Any

from semifed.data.file_settings import FileSettings
from semifed.data.scenario import ScenarioSettings
from semifed.data.sources import Dataset
from semifed.data.views import ViewSettings
from semifed.errors import SemifedError
from semifed.experiment import EngineSettings, Experiment, TrainSettings
from semifed.methods import METHODS
from semifed.nets.zoo import NetSettings
from semifed.results.record import Record
from semifed.run import run
from semifed.training import ClientTraining, ServerTraining

if TYPE_CHECKING:
    from semifed.doctor import examine
    from semifed.engine.leaving import leaving
    from semifed.live import watch_runs
    from semifed.logs import Log
    from semifed.planning import plan
    from semifed.report import write_report
    from semifed.report.figures import write_figures
    from semifed.results.collection import StoredRun, collect
    from semifed.results.statistics import compare
    from semifed.sweeps.sweep import sweep
    from semifed.trained.choice import choose
    from semifed.trained.export import export
    from semifed.trained.model import Model
    from semifed.trained.predict import predict

_LATER = {
    "Log": "logs",
    "Model": "trained.model",
    "StoredRun": "results.collection",
    "choose": "trained.choice",
    "collect": "results.collection",
    "compare": "results.statistics",
    "examine": "doctor",
    "export": "trained.export",
    "leaving": "engine.leaving",
    "plan": "planning",
    "predict": "trained.predict",
    "sweep": "sweeps.sweep",
    "watch_runs": "live",
    "write_figures": "report.figures",
    "write_report": "report",
}
"""What a run does not need is imported when it is asked for: a start takes a third less."""

__all__ = [
    "METHODS",
    "ClientTraining",
    "Dataset",
    "EngineSettings",
    "Experiment",
    "FileSettings",
    "Log",
    "Model",
    "NetSettings",
    "Record",
    "ScenarioSettings",
    "SemifedError",
    "ServerTraining",
    "StoredRun",
    "TrainSettings",
    "ViewSettings",
    "choose",
    "collect",
    "compare",
    "examine",
    "export",
    "leaving",
    "plan",
    "predict",
    "run",
    "sweep",
    "watch_runs",
    "write_figures",
    "write_report",
]


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})
