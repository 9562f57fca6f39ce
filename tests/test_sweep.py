"""Sweeps: the grid, what is repeated and what is not, failures, stops and kills."""

import json
import os
import random
import re
import shutil
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np
import psutil
import pytest

from semifed import Experiment, collect, sweep
from semifed.errors import RunError, SettingError
from semifed.methods.fedavg import FedAvg
from semifed.nets.net import Net
from semifed.params import Parts
from semifed.results.folder import read_json
from semifed.sweeps.folder import taken
from semifed.sweeps.grid import Axis, axes, axis, point_name, points
from semifed.sweeps.processes import _way_to_start
from semifed.sweeps.progress import FINISHED, RUNNING, SweepProgress
from semifed.sweeps.view import duration, summary_line
from toys import TINY, call, contents, end, rows_in, same_end, sets, start, worker_processes

EXPERIMENT = Experiment.read(None, [*TINY, "train.rounds=3"])
OVER = {"method": ("fedavg", "fedavg+"), "seed": (0, 1)}
NAMES = [f"method={method},seed={seed}" for method in OVER["method"] for seed in OVER["seed"]]


def replaced(assignments: Sequence[str]) -> Experiment:
    return EXPERIMENT.replace(*assignments)


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
    assert axis("data=folder:O'Brien/a,folder:b") == Axis("data", ("folder:O'Brien/a", "folder:b"))
    assert axis('views.weak=["shift","flip"],[]') == Axis("views.weak", ('["shift","flip"]', "[]"))
    assert axes({"server.nesterov": [True], "client.lr": (0.1, 0.2)}) == [
        Axis("server.nesterov", ("true",)),
        Axis("client.lr", ("0.1", "0.2")),
    ]


@pytest.mark.parametrize(
    "text", ["seed", "seed=", "=1", "seed=1,,2", "seed=2..1", "seed=0..99999999", "seed=1,1", 'a="b,c', "a=[1,2"]
)
def test_an_axis_that_says_nothing_is_refused(text: str) -> None:
    with pytest.raises(SettingError, match="--over"):
        axis(text)


def test_every_point_is_named_and_checked() -> None:
    made = points(replaced, axes(OVER))
    assert [point.name for point in made] == NAMES
    assert (made[3].experiment.seed, made[3].experiment.tables()["method"]["name"]) == (1, "fedavg+")
    with pytest.raises(SettingError, match=r"client\.lr=0: client\.lr: must be above 0"):
        points(replaced, [axis("client.lr=0.1,0")])
    with pytest.raises(SettingError, match="seed: is given twice"):
        points(replaced, [axis("seed=0"), axis("seed=1")])
    options = points(replaced, [axis("method.mu=0.5"), axis("method=fedsiam-d")])
    assert options[0].experiment.tables()["method"]["mu"] == 0.5


def test_what_is_named_comes_before_its_options_and_a_word_on_clients_is_heard() -> None:
    first = points(replaced, [axis("net.norm=group"), axis("net=small-cnn")])
    assert first[0].experiment.tables()["net"]["norm"] == "group"
    always = ["method=fedsiam-d", "method.mu=0.7", "scenario.clients=5"]
    made = points(
        partial(Experiment.read, None), [axis("method=fedsiam-d,fedprox"), axis("scenario.clients=5,20")], always
    )
    assert [point.experiment.tables()["method"]["mu"] for point in made[:2]] == [0.7, 0.7]
    assert [point.experiment.train.clients_per_round for point in made[:2]] == [5, 10]


def test_two_points_that_are_one_experiment_are_refused() -> None:
    with pytest.raises(SettingError, match=r"--over client.lr=0.10: is the same experiment as client.lr=0.1; name"):
        points(replaced, [axis("client.lr=0.1,0.10")])
    with pytest.raises(SettingError, match="is the same experiment"):
        points(replaced, axes({"seed": [1, 1]}))


def test_values_from_python_are_taken_as_they_are() -> None:
    weak = ("shift", "flip"), ()
    made = points(replaced, axes({"data": ["folder:/x,y"], "views.weak": weak, "client.clip": [None, 1.0]}))
    assert [point.experiment.data for point in made] == ["folder:/x,y"] * 4
    assert [point.experiment.views.weak for point in made] == [weak[0], weak[0], weak[1], weak[1]]
    assert [point.experiment.client.clip for point in made] == [None, 1.0] * 2
    numbers = axes({"seed": np.arange(2), "client.lr": np.array([0.1]), "data": [Path("a") / "b"]})
    assert [one.values for one in numbers] == [("0", "1"), ("0.1",), (str(Path("a") / "b"),)]
    with pytest.raises(SettingError, match="over: method takes names, numbers and lists of them, not "):
        axes({"method": [FedAvg()]})
    for nothing in ("fedavg", (), {"fedavg": 1}):
        with pytest.raises(SettingError, match="over: method is varied over a list of values, not "):
            axes({"method": nothing})


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


def test_a_sweep_that_names_no_net_goes_on(tmp_path: Path) -> None:
    unnamed = Experiment.read(None, [word for word in (*TINY, "train.rounds=1") if not word.startswith("net=")])
    sweep(unnamed, {"seed": (0,)}, tmp_path)
    names = [run.name for run in sweep(unnamed, {"seed": (0, 1), "method": ("fedavg",)}, tmp_path)]
    assert names == ["seed=0,method=fedavg", "seed=1,method=fedavg"]
    again = call("sweep", "--out", str(tmp_path), "--json")
    assert [run["name"] for run in json.loads(again.out)] == ["seed=0", *names]
    assert read_json(tmp_path / "sweep.json")["over"] == {"seed": ["0", "1"], "method": ["fedavg"]}
    with pytest.raises(SettingError, match=r"net\.name: \w.* -> mlp"):
        sweep(unnamed.replace("net=mlp"), {"seed": (0,)}, tmp_path)


@pytest.mark.parametrize(
    "runs", [3, None, [3], [{}], [{"name": "a", "experiment": 3}], [{"name": "../../escaped", "experiment": {}}]]
)
def test_a_damaged_list_of_runs_is_told_in_one_line(runs: object, tmp_path: Path) -> None:
    (tmp_path / "sweep.json").write_text(json.dumps({"runs": runs}), "utf-8")
    said = call("sweep", "--out", str(tmp_path))
    assert said.code == 4
    assert "sweep.json: " in said.line
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("over", [3, {"seed": 3}, ["seed"]])
def test_a_damaged_list_of_what_is_varied_too(over: object, unbroken: Path, tmp_path: Path) -> None:
    content = read_json(unbroken / "sweep.json")
    (tmp_path / "sweep.json").write_text(json.dumps(content | {"over": over}), "utf-8")
    assert "sweep.json: is damaged" in call("sweep", "--out", str(tmp_path)).line


def test_a_damaged_run_does_not_end_the_others(unbroken: Path, tmp_path: Path) -> None:
    shutil.copytree(unbroken, tmp_path / "sweep")
    (tmp_path / "sweep" / "runs" / NAMES[1] / "rounds.jsonl").write_text("{\n", "utf-8")
    shutil.rmtree(tmp_path / "sweep" / "runs" / NAMES[3])
    with pytest.raises(RunError, match=f"1 of 4 runs failed: {re.escape(NAMES[1])}: .*rounds.jsonl"):
        sweep(EXPERIMENT, OVER, tmp_path / "sweep")
    assert same_end(unbroken / "runs" / NAMES[3], tmp_path / "sweep" / "runs" / NAMES[3])


def test_a_dry_run_is_of_what_is_left(unbroken: Path) -> None:
    said = call("sweep", "--out", str(unbroken), "--dry-run")
    assert (said.code, said.out) == (0, "4 of 4 runs are finished\n")
    assert "--jobs" in call("sweep", "--out", str(unbroken), "--dry-run", "--jobs", "0").line
    before = [contents(unbroken / "runs" / name) for name in NAMES], (unbroken / "sweep.json").read_bytes()
    words = ["sweep", *sets(*TINY, "train.rounds=3", "client.lr=0.25"), "--over", "method=fedavg,fedavg+"]
    words += ["--over", "seed=0,1", "--dry-run"]
    assert "the experiment has changed" in call(*words, "--out", str(unbroken)).line
    assert "holds other things" in call(*words, "--out", str(unbroken / "runs" / NAMES[0])).line
    assert before == ([contents(unbroken / "runs" / name) for name in NAMES], (unbroken / "sweep.json").read_bytes())


def test_threads_are_not_forked() -> None:
    assert _way_to_start(EXPERIMENT.replace("engine.threads=2")) == "spawn"


def test_a_kill_before_the_list_of_runs_was_written_locks_nobody_out(tmp_path: Path) -> None:
    (tmp_path / "sweep.json.partial").write_text("{", "utf-8")
    sweep(EXPERIMENT.replace("train.rounds=1"), {"seed": (0,)}, tmp_path)
    assert not (tmp_path / "sweep.json.partial").exists()


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").touch()
    with pytest.raises(RunError, match="not the folder of a sweep"):
        sweep(EXPERIMENT, OVER, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]
    with pytest.raises(RunError, match="give another --out"):
        sweep(EXPERIMENT, OVER, tmp_path / ("long" * 100))
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
    words = ["sweep", *over, *sets(*TINY, "train.rounds=240"), "--jobs", "2", "--quiet", "--out"]
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
