"""Writers for other tools: what they get, that they are off by default, and that none can end a run."""

import shutil
import sys
import time
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import semifed
from semifed.errors import SettingError
from semifed.logs import WRITERS, Log
from semifed.logs.numbers import numbers, plain
from semifed.run import Event
from toys import TINY, call, stop_after, tiny


def experiment(*words: str) -> semifed.Experiment:
    return semifed.Experiment.read(None, [*TINY, "train.evaluate_every=1", *words])


def test_rows_become_numbers_with_paths() -> None:
    row = {
        "round": 3,
        "models": {"global": {"accuracy": 90.0, "loss": None}},
        "notes": {"classes": [0.1, 0.2]},
        "clients": [1, 2],
        "alarms": ["x"],
        "refused": {},
    }
    assert numbers(row) == {
        "models/global/accuracy": 90.0,
        "notes/classes/0": 0.1,
        "notes/classes/1": 0.2,
        "alarms": 1.0,
        "refused": 0.0,
    }
    assert plain({"a": {"b": None, "c": (1, 2)}, "d": 1}) == {"a.c": "(1, 2)", "d": 1}


class Fake:
    """A writer that remembers what it was told, and fails when asked to."""

    kind = "fake"
    made: "Fake"

    def __init__(self) -> None:
        type(self).made = self
        self.told: list[Any] = []
        self.fails_at = 0

    def begin(self, folder: Path, settings: Mapping[str, Any]) -> None:
        self.told.append((folder.name, settings["seed"]))

    def write(self, round: int, numbers: Mapping[str, float]) -> None:
        if round == self.fails_at:
            raise OSError("the disk\nis full")
        self.told.append((round, numbers["models/global/accuracy"]))

    def close(self, well: bool) -> None:
        self.told.append(well)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[Fake]:
    monkeypatch.setattr("semifed.logs.WRITERS", {**WRITERS, "fake": Fake})
    return Fake


def test_a_writer_hears_of_every_round_also_of_those_before_a_stop(fake: type[Fake], tmp_path: Path) -> None:
    log, stop = Log(["fake"], tmp_path / "run"), stop_after(2)

    def watch(event: Event) -> None:
        log(event)
        stop(event)

    with pytest.raises(KeyboardInterrupt), log:
        semifed.run(experiment(), tmp_path / "run", watch=watch)
    assert [one[0] for one in fake.made.told[:-1]] == ["run", 1, 2]
    assert fake.made.told[-1] is False
    with Log(["fake"], tmp_path / "run") as log:
        record = semifed.run(None, tmp_path / "run", resume=True, watch=log)
    accuracies = [(row["round"], row["models"]["global"]["accuracy"]) for row in record.rows]
    assert fake.made.told == [("run", 0), *accuracies, True]


def test_a_writer_that_fails_is_told_of_once_and_the_run_goes_on(fake: type[Fake], tmp_path: Path) -> None:
    with Log(["fake"], tmp_path / "run") as log:
        fake.made.fails_at = 2
        with pytest.warns(UserWarning, match=r"--log fake: fails and is left out from here on \(the disk\)"):
            record = semifed.run(experiment(), tmp_path / "run", watch=log)
    assert record.summary["status"] == "finished"
    assert fake.made.told[1:] == [(1, record.rows[0]["models"]["global"]["accuracy"])]


def test_an_unknown_writer_or_a_missing_package_is_found_before_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SettingError, match="did you mean tensorboard"):
        Log(["tensorbord"], tmp_path)
    monkeypatch.setitem(sys.modules, "wandb", None)
    said = call(*tiny(tmp_path / "run", "--log", "wandb"))
    assert said.code == 2
    assert "pip install 'semifed[wandb]'" in said.line
    assert not (tmp_path / "run").exists()


def test_nothing_is_written_unless_asked_for(tmp_path: Path) -> None:
    assert call(*tiny(tmp_path / "run")).code == 0
    assert not [path for path in (tmp_path / "run").iterdir() if path.is_dir()]


def test_tensorboard_files_hold_the_numbers(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    said = call(*tiny(tmp_path / "run", "train.evaluate_every=1", "--log", "tensorboard"))
    assert said.code == 0, said
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    (run,) = semifed.collect([tmp_path / "run"])
    found = [(one.step, pytest.approx(one.value)) for one in events.Scalars("models/global/accuracy")]
    assert found == [(row["round"], row["models"]["global"]["accuracy"]) for row in run.rows]
    assert [one.value for one in events.Scalars("bytes/up")] == [row["bytes"]["up"] for row in run.rows]


def test_wandb_is_offline_and_gets_every_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for the package: what is asked of it."""
    told: dict[str, Any] = {"rows": []}

    class Run:
        def log(self, values: dict[str, float], step: int) -> None:
            told["rows"].append((step, values["seconds"] > 0))

        def finish(self, exit_code: int) -> None:
            told["code"] = exit_code

    def init(**given: Any) -> Run:
        told.update(given)
        return Run()

    module = types.ModuleType("wandb")
    module.init = init  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", module)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    with Log(["wandb"], tmp_path / "run") as log:
        semifed.run(experiment(), tmp_path / "run", watch=log)
    assert (told["mode"], told["name"], told["code"], told["resume"]) == ("offline", "run", 0, "allow")
    assert told["rows"] == [(1, True), (2, True), (3, True), (4, True)]
    assert told["config"]["method.name"] == "fedavg"


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_wandb_itself_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    with Log(["wandb"], tmp_path / "run") as log:
        semifed.run(experiment(), tmp_path / "run", watch=log)
    assert list((tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb"))


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_mlflow_itself_in_a_data_base_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with Log(["mlflow"], tmp_path / "run") as log:
        record = semifed.run(experiment(), tmp_path / "run", watch=log)
    client = mlflow.MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")
    (run,) = client.search_runs([client.get_experiment_by_name("semifed").experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.params["method.name"] == "fedavg"
    history = client.get_metric_history(run.info.run_id, "models/global/accuracy")
    assert [(one.step, one.value) for one in history] == [
        (row["round"], row["models"]["global"]["accuracy"]) for row in record.rows
    ]


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_an_mlflow_run_that_goes_on_is_the_same_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    log, stop = Log(["mlflow"], tmp_path / "run"), stop_after(2)

    def watch(event: Event) -> None:
        log(event)
        stop(event)

    with pytest.raises(KeyboardInterrupt), log:
        semifed.run(experiment(), tmp_path / "run", watch=watch)
    with Log(["mlflow"], tmp_path / "run") as log:
        record = semifed.run(None, tmp_path / "run", resume=True, watch=log)
    client = mlflow.MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")
    (run,) = client.search_runs([client.get_experiment_by_name("semifed").experiment_id])
    assert run.info.status == "FINISHED"
    history = client.get_metric_history(run.info.run_id, "seconds")
    assert [one.step for one in history] == [row["round"] for row in record.rows]
    shutil.rmtree(tmp_path / "run")
    time.sleep(1.1)  # the moment at which a run began tells it from what was there
    with Log(["mlflow"], tmp_path / "run") as log:
        semifed.run(experiment(), tmp_path / "run", watch=log)
    assert len(client.search_runs([run.info.experiment_id])) == 2
