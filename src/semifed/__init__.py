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

from semifed.data.file_settings import FileSettings
from semifed.data.scenario import ScenarioSettings
from semifed.data.sources import Dataset
from semifed.data.views import ViewSettings
from semifed.doctor import examine
from semifed.engine.leaving import leaving
from semifed.errors import SemifedError
from semifed.experiment import EngineSettings, Experiment, TrainSettings
from semifed.live import watch_runs
from semifed.logs import Log
from semifed.methods import METHODS
from semifed.nets.zoo import NetSettings
from semifed.planning import plan
from semifed.report import write_report
from semifed.report.figures import write_figures
from semifed.results.collection import StoredRun, collect
from semifed.results.record import Record
from semifed.results.statistics import compare
from semifed.run import run
from semifed.sweeps.sweep import sweep
from semifed.trained.choice import choose
from semifed.trained.export import export
from semifed.trained.model import Model
from semifed.trained.predict import predict
from semifed.training import ClientTraining, ServerTraining

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
