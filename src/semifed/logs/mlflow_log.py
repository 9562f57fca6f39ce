"""MLflow: a data base file beside the runs, or the server that MLFLOW_TRACKING_URI names."""

import hashlib
import importlib
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from semifed.logs.numbers import plain
from semifed.results.folder import read_json


class MlflowWriter:
    """One run of the experiment `semifed`, or of MLFLOW_EXPERIMENT_NAME; one that goes on as it was stays the same."""

    kind: ClassVar[str] = "mlflow"

    def __init__(self) -> None:
        self._mlflow, entities = importlib.import_module("mlflow"), importlib.import_module("mlflow.entities")
        self._metric, self._param = entities.Metric, entities.Param
        self._client: Any = None
        self._id, self._written = "", 0

    def begin(self, folder: Path, settings: Mapping[str, Any]) -> None:
        beside = (folder.resolve().parent / "mlflow.db").as_posix()
        store = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{beside}"
        self._client = self._mlflow.MlflowClient(store)
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "semifed")
        known = self._client.get_experiment_by_name(name)
        experiment = known.experiment_id if known else self._client.create_experiment(name)
        place, begun = str(folder.resolve()), read_json(folder / "environment.json").get("begun")
        own = hashlib.sha256(f"{place} {begun}".encode()).hexdigest()[:16]
        tags = {"semifed.folder": place, "semifed.id": own}
        values = {key: str(value)[:500] for key, value in plain(settings).items()}
        before = self._client.search_runs([experiment], f"tags.`semifed.id` = '{own}'", max_results=1)
        if before and before[0].data.params == values:  # settings cannot be changed there
            self._id = before[0].info.run_id
            self._client.update_run(self._id, status="RUNNING")
            histories = (self._client.get_metric_history(self._id, key) for key in before[0].data.metrics)
            self._written = max((one.step for history in histories for one in history), default=0)
            return
        self._id = self._client.create_run(experiment, tags=tags, run_name=folder.name).info.run_id
        params = [self._param(key, value) for key, value in values.items()]
        for start in range(0, len(params), 100):
            self._client.log_batch(self._id, params=params[start : start + 100])

    def write(self, round: int, numbers: Mapping[str, float]) -> None:
        if round <= self._written:  # before it was stopped
            return
        now = int(time.time() * 1000)
        metrics = [self._metric(name.replace("+", "plus"), value, now, round) for name, value in numbers.items()]
        for start in range(0, len(metrics), 1000):
            self._client.log_batch(self._id, metrics=metrics[start : start + 1000])

    def close(self, well: bool) -> None:
        self._client.set_terminated(self._id, "FINISHED" if well else "FAILED")
