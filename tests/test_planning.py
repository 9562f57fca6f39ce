"""Forecasts: what is counted is exact, what is timed is near, and the commands that show them."""

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from semifed import Experiment, plan, planning, run
from semifed.data.sources import Dataset
from semifed.engine.assemble import Assembly, load_data, prepare
from semifed.planning import Forecast, plan_all, totals
from semifed.results.record import Record
from toys import TINY, call, sets

SLOW = {
    "labels only": ("method=fedavg+", "train.rounds=20"),
    "two nets": ("method=fedsiam-d", "train.rounds=8"),
    "at the server": ("method=fedcon", "scenario.labels=server", "train.rounds=20"),
    "uneven": ("method=fedavg-fixmatch", "scenario.partition=dirichlet", "train.rounds=8"),
}


def test_traffic_and_steps_are_those_of_the_run() -> None:
    experiment = Experiment.read(None, [*TINY, "method=fedavg+", "train.rounds=6"])
    forecast, record = plan(experiment), run(experiment)
    assert forecast.down == record.summary["bytes"]["down"]
    assert forecast.up == record.summary["bytes"]["up"]
    assert forecast.up_range == (forecast.up, forecast.up)
    workshop = prepare(experiment).workshop
    steps = [workshop.steps_of(place, client) for place, row in enumerate(record.rows) for client in row["clients"]]
    assert forecast.steps == sum(steps)
    assert forecast.seconds > 0
    assert forecast.memory > 50 * 2**20


def test_a_method_that_chooses_what_it_sends_has_a_range() -> None:
    experiment = Experiment.read(None, [*TINY, "method=fedsiam-d", "train.rounds=8"])
    forecast, record = plan(experiment), run(experiment)
    least, most = forecast.up_range
    assert least < most
    assert least <= record.summary["bytes"]["up"] <= most


def test_experiments_that_take_the_same_time_are_timed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    timed: list[Assembly] = []
    time_it = planning._time

    def note(assembly: Assembly) -> planning.Pace:
        timed.append(assembly)
        return time_it(assembly)

    monkeypatch.setattr(planning, "_time", note)
    base = Experiment.read(None, [*TINY, "client.epochs=6"])
    changes = ("seed=0", "seed=1", "scenario.partition=noniid", "train.rounds=8", "client.batch=10")
    forecasts = plan_all([base.replace(change) for change in changes])
    assert len(timed) == 2
    assert forecasts[3].seconds > forecasts[0].seconds


def test_experiments_that_do_not_are_timed_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    timed: list[Assembly] = []

    def note(assembly: Assembly) -> planning.Pace:
        timed.append(assembly)
        return planning.Pace(1.0, 1.0, 1.0, 0.0, 1.0, 1, 1.0, (1.0, 1.0))

    monkeypatch.setattr(planning, "_time", note)
    base = Experiment.read(None, TINY)  # visits of two steps, which do not tell what a step takes
    changes = ("seed=0", "scenario.clients=3", "train.test_clients=true", "scenario.partition=dirichlet")
    plan_all([base.replace(change) for change in changes])
    assert len(timed) == 4


def test_data_of_your_own_are_read_once_for_each_way_to_read_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = np.random.default_rng(0).integers(0, 256, (200, 8, 8), np.uint8)
    np.savez(tmp_path / "own.npz", images=images, labels=np.arange(200) % 4)
    loaded: list[bool] = []

    def note(experiment: Experiment, data_dir: Path | None) -> Dataset:
        loaded.append(experiment.files.flips)
        return load_data(experiment, data_dir)

    monkeypatch.setattr(planning, "load_data", note)
    base = Experiment.read(None, [*TINY, f"data=npz:{tmp_path / 'own.npz'}", "train.rounds=1"])
    forecasts = plan_all([base.replace(f"files.flips={flips}", "seed=1") for flips in ("false", "false", "true")])
    assert loaded == [False, True]
    assert all(one.steps for one in forecasts)


def test_rounds_of_private_clients_that_have_nobody_are_forecast_too() -> None:
    private = ("privacy.noise=1.0", "privacy.clip=1.0", "train.clients_per_round=1", "train.rounds=6", "seed=4")
    experiment = Experiment.read(None, [*TINY, *private])
    forecast, record = plan(experiment), run(experiment)
    assert [len(row["clients"]) for row in record.rows] == [0, 0, 1, 0, 0, 1]
    sent = record.summary["bytes"]
    assert (forecast.down, forecast.up, forecast.up_range) == (sent["down"], sent["up"], (sent["up"], sent["up"]))
    assert forecast.steps > 0


def test_rounds_count_that_are_warm() -> None:
    for mode, counted in (("mapped", range(3, 5)), ("single", range(1, 3))):
        assert planning._counted(prepare(Experiment.read(None, [*TINY, f"engine.mode={mode}"]))) == counted


def test_timed_visits_are_no_longer_than_those_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int | None] = []

    def note(experiment: Experiment, *given: Any, **named: Any) -> Record:
        asked.append(experiment.client.steps)
        return run(experiment, *given, **named)

    monkeypatch.setattr(planning, "run", note)
    plan(Experiment.read(None, [*TINY, "client.batch=2", "client.steps=3"]))
    assert asked == [2, 3]


@pytest.mark.parametrize("labels", ["client", "server"])
def test_what_a_round_takes_besides_does_not_blur_what_a_step_takes(
    labels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    longer = ("client.batch=2", "client.unlabelled_batch=2", "server.batch=2", f"scenario.labels={labels}")
    assembly = prepare(Experiment.read(None, [*TINY, "method=fedavg-fixmatch", *longer]))
    server = assembly.workshop.server_steps(0)
    noise = iter((9.0, 9.0) if server else (9.0, 8.0))  # where merging takes seconds it may well be shorter next time

    def short_run(assembly: Assembly, counted: range, steps: int, server_steps: int) -> planning._Timed:
        assert (len(counted), server_steps) == (2, min(server, server_steps))
        load = planning._load(assembly, planning._visits(assembly, 0), steps)
        return planning._Timed(1.0, 0.3 + 0.05 * load, next(noise) + 0.2 * server_steps, 0.5, 0, 5, 7)

    monkeypatch.setattr(planning, "_short_run", short_run)
    pace = planning._time(assembly)
    assert pace.step == pytest.approx(0.05)
    assert pace.server_step == pytest.approx(0.2 if server else 0.0)
    assert pace.round == pytest.approx(9.3)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell it")
def test_memory_is_that_of_a_run_and_its_workers_and_not_of_runs_before() -> None:
    planning._forget_peak()
    before = planning._peak_memory()
    torch.ones(100 * 2**20, dtype=torch.uint8)
    assert planning._peak_memory() > before + 90 * 2**20
    planning._forget_peak()
    assert planning._peak_memory() < before + 50 * 2**20
    assemblies = [prepare(Experiment.read(None, [*TINY, f"engine.workers={workers}"])) for workers in (1, 2)]
    alone, two = (planning._short_run(assembly, range(1, 2), 1, 1).workers for assembly in assemblies)
    assert alone == 0
    assert 2**20 < two < before


def test_runs_at_a_time_share_the_time_and_add_up_in_memory() -> None:
    runs = [Forecast(seconds, memory, 5, 7, (7, 7), 1, 1, seconds) for seconds, memory in ((10.0, 3), (30.0, 4))]
    assert totals(runs, 1) == {"seconds": 40, "memory": 4, "down": 10, "up": 14}
    assert totals(runs, 2) == {"seconds": 30, "memory": 7, "down": 10, "up": 14}


def test_the_commands_show_it_and_run_nothing(tmp_path: Path) -> None:
    said = call("plan", *sets(*TINY))
    assert (said.code, "steps of clients" in said.out) == (0, True)
    words = ["sweep", *sets(*TINY), "--over", "seed=0..1", "--out", str(tmp_path / "sweep"), "--dry-run"]
    assert call(*words).out.count("seed=") == 2
    answer = json.loads(call(*words, "--jobs", "2", "--json").out)
    assert [one["name"] for one in answer["runs"]] == ["seed=0", "seed=1"]
    assert answer["seconds"] > 0
    assert "--jobs" in call(*words, "--jobs", "-1").line
    assert not (tmp_path / "sweep").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_a_forecast_is_within_a_third(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In seconds of this process's own work, so that it holds on a machine whose load comes and goes."""
    monkeypatch.setattr(planning, "clock", time.process_time)
    experiment = Experiment.read(None, ["data=mnist5k", "scenario.clients=20", "scenario.gamma=0.1", *SLOW[name]])
    forecast = plan(experiment)
    started = time.process_time()
    record = run(experiment, tmp_path / "run")
    taken = time.process_time() - started
    assert forecast.seconds == pytest.approx(taken, rel=0.3)
    assert forecast.down == pytest.approx(record.summary["bytes"]["down"], rel=0.3)
    assert forecast.up == pytest.approx(record.summary["bytes"]["up"], rel=0.3)
