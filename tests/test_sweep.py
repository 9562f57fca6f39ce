"""Sweeps: the grid, what is repeated and what is not, failures, stops and kills."""

import json
import os
import random
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import psutil
import pytest

from semifed import Experiment, collect, sweep
from semifed.errors import RunError, SettingError
from semifed.methods.fedavg import FedAvg
from semifed.nets.net import Net
from semifed.params import Parts
from semifed.sweeps.folder import taken
from semifed.sweeps.grid import Axis, axes, axis, point_name, points
from semifed.sweeps.progress import FINISHED, RUNNING, SweepProgress
from semifed.sweeps.view import duration, summary_line
from toys import TINY, call, contents, end, rows_in, same_end, sets, start, worker_processes

EXPERIMENT = Experiment.read(None, [*TINY, "train.rounds=3"])
OVER = {"method": ("fedavg", "fedavg+"), "seed": (0, 1)}
NAMES = [f"method={method},seed={seed}" for method in OVER["method"] for seed in OVER["seed"]]


@dataclass(frozen=True)
class Fails(FedAvg):
    """Cannot begin."""

    title: ClassVar[str] = "fails"

    def init(self, net: Net, key: int) -> Parts:
        raise ValueError("out of luck")


@dataclass(frozen=True)
class Dies(FedAvg):
    """Takes its process with it."""

    title: ClassVar[str] = "dies"

    def init(self, net: Net, key: int) -> Parts:
        os.kill(os.getpid(), signal.SIGKILL)
        return super().init(net, key)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sweeps") / "unbroken"
    runs = sweep(EXPERIMENT, OVER, folder, jobs=2)
    assert [(run.name, run.status) for run in runs] == [(name, "finished") for name in NAMES]
    return folder


def test_an_axis_is_a_list_or_a_range() -> None:
    assert axis("seed=0..2") == Axis("seed", ("0", "1", "2"))
    assert axis("seed=3,5..6") == Axis("seed", ("3", "5", "6"))
    assert axis(' method = fedavg+ , "a,b"') == Axis("method", ("fedavg+", '"a,b"'))
    assert axis('views.weak=["shift","flip"],[]') == Axis("views.weak", ('["shift","flip"]', "[]"))
    assert axes({"server.nesterov": [True], "client.lr": (0.1, 0.2)}) == [
        Axis("server.nesterov", ("true",)),
        Axis("client.lr", ("0.1", "0.2")),
    ]


@pytest.mark.parametrize("text", ["seed", "seed=", "=1", "seed=1,,2", "seed=2..1", "seed=0..99999999", "seed=1,1"])
def test_an_axis_that_says_nothing_is_refused(text: str) -> None:
    with pytest.raises(SettingError, match="--over"):
        axis(text)


def test_every_point_is_named_and_checked() -> None:
    made = points(EXPERIMENT, axes(OVER))
    assert [point.name for point in made] == NAMES
    assert (made[3].experiment.seed, made[3].experiment.tables()["method"]["name"]) == (1, "fedavg+")
    with pytest.raises(SettingError, match=r"client\.lr=0: client\.lr: must be above 0"):
        points(EXPERIMENT, [axis("client.lr=0.1,0")])
    with pytest.raises(SettingError, match="seed: is given twice"):
        points(EXPERIMENT, [axis("seed=0"), axis("seed=1")])
    options = points(EXPERIMENT, [axis("method.mu=0.5"), axis("method=fedsiam-d")])
    assert options[0].experiment.tables()["method"]["mu"] == 0.5


def test_names_fit_a_file_system_and_stay_different() -> None:
    names = {point_name([f"views.weak={text}"]) for text in ('["shift"]', '["shift" ]', "x" * 300, "x" * 301)}
    assert len(names) == 4
    assert all(len(name) < 200 and not set(name) & set('/"[] ') for name in names)


def test_what_is_finished_is_not_touched_and_a_grid_may_grow(unbroken: Path, tmp_path: Path) -> None:
    before = {name: contents(unbroken / "runs" / name) for name in NAMES}
    sweep(EXPERIMENT, OVER, unbroken)
    assert {name: contents(unbroken / "runs" / name) for name in NAMES} == before
    one = {"method": ("fedavg",), "seed": (1,)}
    sweep(EXPERIMENT, one, tmp_path / "grows")
    sweep(EXPERIMENT, OVER, tmp_path / "grows")
    assert len(collect([tmp_path / "grows"])) == 4
    assert all(same_end(unbroken / "runs" / name, tmp_path / "grows" / "runs" / name) for name in NAMES)


def test_another_experiment_under_the_same_name_is_refused(unbroken: Path) -> None:
    with pytest.raises(SettingError, match=r"client\.lr: 0\.01 -> 0\.1.*give another --out"):
        sweep(EXPERIMENT.replace("client.lr=0.1"), OVER, unbroken)
    with taken(unbroken), pytest.raises(RunError, match="in use by another sweep"):
        sweep(EXPERIMENT, OVER, unbroken)


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").touch()
    with pytest.raises(RunError, match="not the folder of a sweep"):
        sweep(EXPERIMENT, OVER, tmp_path)
    with pytest.raises(SettingError, match="--jobs"):
        sweep(EXPERIMENT, OVER, tmp_path, jobs=0)


def test_failures_are_named_and_the_others_go_on(tmp_path: Path, unbroken: Path) -> None:
    over = {"method": ("test_sweep:Fails", "test_sweep:Dies", "fedavg"), "seed": (0,)}
    with pytest.raises(RunError, match=r"2 of 3 runs failed: .*Fails.*ValueError: out of luck.*and 1 more.*Dies"):
        sweep(EXPERIMENT, over, tmp_path / "sweep", jobs=2)
    assert same_end(tmp_path / "sweep" / "runs" / NAMES[0], unbroken / "runs" / NAMES[0])
    logs = [path.read_text() for path in (tmp_path / "sweep" / "logs").glob("*Fails*")]
    assert len(logs) == 1
    assert "Traceback" in logs[0]


def test_a_stopped_sweep_goes_on(tmp_path: Path, unbroken: Path) -> None:
    def stop(progress: SweepProgress) -> None:
        if any(run.done for run in progress.runs.values()):
            raise KeyboardInterrupt

    folder = tmp_path / "sweep"
    with pytest.raises(KeyboardInterrupt):
        sweep(EXPERIMENT, OVER, folder, jobs=1, watch=stop)
    assert worker_processes(psutil.Process()) == []
    (first, *_) = collect([folder])
    assert first.status in ("stopped", "finished")
    said = call("sweep", "--out", str(folder), "--json")
    assert said.code == 0, said
    assert [(run["name"], run["status"]) for run in json.loads(said.out)] == [(name, "finished") for name in NAMES]
    assert all(same_end(unbroken / "runs" / name, folder / "runs" / name) for name in NAMES)


def test_the_command_says_what_is_missing(tmp_path: Path) -> None:
    assert "no sweep to go on with" in call("sweep", "--out", str(tmp_path)).line
    assert "say what is varied" in call("sweep", *sets("net=mlp"), "--out", str(tmp_path)).line


def test_the_time_that_is_left() -> None:
    progress = SweepProgress(Path(), {"a": 10, "b": 10, "c": 10}, jobs=2)
    assert progress.seconds_left() is None
    progress.note("a", RUNNING, 5, 90.0, 2.0)
    assert progress.seconds_left() == (10 + 20 + 20) / 2
    progress.note("b", FINISHED, 10, None, 4.0)
    assert progress.seconds_left() == 30  # c takes the mean of both, alone
    assert summary_line(progress) == "1/3 runs finished, 1 running, 30 s left"
    assert [duration(seconds) for seconds in (3, 300, 36000)] == ["3 s", "5 min", "10.0 h"]


def rounds_in(folder: Path) -> int:
    """The rounds that all runs of a sweep have written."""
    return sum(path.read_bytes().count(b"\n") for path in folder.glob("runs/*/rounds.jsonl"))


@pytest.mark.slow
def test_a_sweep_killed_ten_times_ends_as_one_never_killed(tmp_path: Path) -> None:
    """Ten kills -9 of the whole sweep while runs are under way, then once to the end: the same table."""
    over = ["--over", "method=fedavg+,fedsiam-d", "--over", "seed=0..1"]
    words = ["sweep", *over, *sets(*TINY, "train.rounds=60"), "--jobs", "2", "--quiet", "--out"]
    assert end(start(*words, str(tmp_path / "unbroken")), 900).code == 0
    chance, folder = random.Random(1), tmp_path / "killed"
    for _ in range(10):
        process, before = start(*words, str(folder)), rounds_in(folder)
        while rounds_in(folder) <= before and process.poll() is None:
            time.sleep(0.01)
        time.sleep(chance.uniform(0, 0.3))
        children = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        process.communicate(timeout=60)
        assert process.returncode == -signal.SIGKILL, "the sweep was over before ten kills; make it longer"
        _, alive = psutil.wait_procs(children, timeout=60)
        assert not alive, "a run outlives its sweep"
    assert end(start("sweep", "--out", str(folder), "--quiet"), 900).code == 0
    for run in collect([tmp_path / "unbroken"]):
        assert same_end(run.path, folder / "runs" / run.name)
        assert rows_in(run.path)
    tables = [json.loads(call("compare", str(place), "--json").out) for place in (tmp_path / "unbroken", folder)]
    for table in tables:
        for group in table["groups"]:
            assert [group.pop(f"seconds_{part}") for part in ("mean", "std", "low", "high")]
    assert tables[0] == tables[1]
