"""MLflow: a data base file beside the runs, or the server that MLFLOW_TRACKING_URI names."""

import importlib
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from semifed.logs.numbers import plain


class MlflowWriter:
    """One run of the experiment `semifed`, or of MLFLOW_EXPERIMENT_NAME."""

    kind: ClassVar[str] = "mlflow"

    def __init__(self) -> None:
        self._mlflow, entities = importlib.import_module("mlflow"), importlib.import_module("mlflow.entities")
        self._metric, self._param = entities.Metric, entities.Param
        self._client: Any = None
        self._id = ""

    def begin(self, folder: Path, settings: Mapping[str, Any]) -> None:
        beside = (folder.resolve().parent / "mlflow.db").as_posix()
        store = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{beside}"
        self._client = self._mlflow.MlflowClient(store)
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "semifed")
        known = self._client.get_experiment_by_name(name)
        experiment = known.experiment_id if known else self._client.create_experiment(name)
        tags = {"semifed.folder": str(folder.resolve())}
        self._id = self._client.create_run(experiment, tags=tags, run_name=folder.name).info.run_id
        params = [self._param(key, str(value)[:500]) for key, value in plain(settings).items()]
        for start in range(0, len(params), 100):
            self._client.log_batch(self._id, params=params[start : start + 100])

    def write(self, round: int, numbers: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        metrics = [self._metric(name.replace("+", "plus"), value, now, round) for name, value in numbers.items()]
        for start in range(0, len(metrics), 1000):
            self._client.log_batch(self._id, metrics=metrics[start : start + 1000])

    def close(self, well: bool) -> None:
        self._client.set_terminated(self._id, "FINISHED" if well else "FAILED")
