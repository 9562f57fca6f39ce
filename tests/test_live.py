"""Watching runs from outside."""

import io
import json
import os
import shutil
import time
from pathlib import Path

import pytest
from rich.console import Console

import semifed
from semifed.live import Watched, duration, line_of, sparkline, watch_runs
from semifed.results.collection import read_run
from toys import call

pytest_plugins = ("folders",)


@pytest.fixture
def sweep(finished: Path, half: Path, tmp_path: Path) -> Path:
    """Three runs: one done, one under way, one that has not begun."""
    names = ("done", "going", "later")
    (tmp_path / "sweep.json").write_text(json.dumps({"runs": [{"name": name} for name in names]}))
    shutil.copytree(finished, tmp_path / "runs" / "done")
    shutil.copytree(half, tmp_path / "runs" / "going")
    (tmp_path / "runs" / "going" / "summary.json").unlink()
    (tmp_path / "runs" / "going" / "rounds.jsonl").touch()
    return tmp_path


def test_all_runs_of_a_sweep_as_they_stand(sweep: Path) -> None:
    done, going, later = Watched([sweep]).look()
    assert (done.status, done.round, done.rounds, done.left) == ("finished", 4, 4, None)
    assert done.accuracy == semifed.collect([sweep])[0].summary["models"]["global"]["last"]["accuracy"]
    assert (going.status, going.round) == ("running", 3)
    assert going.left is not None
    assert 0 < going.left < 60
    assert (later.name, later.status) == ("later", "waiting")


def test_a_run_that_says_nothing_for_long_may_be_dead(sweep: Path) -> None:
    run = read_run(sweep / "runs" / "going")
    assert line_of(run, age=100).status == "running"
    quiet = line_of(run, age=100_000)
    assert (quiet.status, quiet.left) == ("quiet", None)
    assert "--resume" in quiet.note


def test_what_never_begins_does_not_keep_it_waiting(sweep: Path) -> None:
    long_ago = time.time() - 5000
    (sweep / ".sweep.lock").touch()
    (sweep / "runs" / "going" / "rounds.jsonl").write_text("")
    for name in ("done", "going"):
        os.utime(sweep / "runs" / name / "rounds.jsonl", (long_ago, long_ago))
    assert [line.status for line in Watched([sweep, sweep]).look()] == ["finished", "quiet", "waiting"]
    os.utime(sweep / ".sweep.lock", (long_ago, long_ago))
    lines = watch_runs([sweep], Console(file=io.StringIO()), wait=lambda _: pytest.fail("it should have ended"))
    assert [line.status for line in lines] == ["finished", "quiet", "quiet"]
    assert "call the sweep again" in lines[2].note


def test_a_run_without_rounds_is_as_old_as_its_experiment(sweep: Path) -> None:
    folder = sweep / "runs" / "going"
    for name in ("rounds.jsonl", "summary.json"):
        (folder / name).unlink(missing_ok=True)
    assert Watched([folder]).look()[0].status == "running"
    os.utime(folder / "experiment.toml", (0, 0))
    assert Watched([folder]).look()[0].status == "quiet"


def test_a_damaged_run_is_a_line_and_the_others_go_on(sweep: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    (sweep / "runs" / "going" / "rounds.jsonl").write_text("spilt\n")
    lines = Watched([sweep]).look()
    assert [line.status for line in lines] == ["finished", "damaged", "waiting"]
    assert "rounds.jsonl: is damaged" in lines[1].note
    (sweep / "runs" / "going" / "experiment.toml").write_text("= spilt")
    assert [line.status for line in Watched([sweep]).look()] == ["finished", "damaged", "waiting"]
    above = tmp_path_factory.mktemp("above")
    shutil.copytree(sweep, above / "sweep")
    assert [line.status for line in Watched([above]).look()] == [line.status for line in lines]


def test_once_prints_and_ends(sweep: Path) -> None:
    said = call("watch", str(sweep), "--once")
    assert (said.code, said.err) == (0, "")
    assert "3/4" in said.out
    assert "3 runs: 1 finished, 1 running, 1 waiting" in said.out
    lines = json.loads(call("watch", str(sweep), "--json").out)
    assert [line["status"] for line in lines] == ["finished", "running", "waiting"]


@pytest.mark.parametrize("terminal", [True, False])
def test_it_ends_when_all_have(sweep: Path, finished: Path, terminal: bool) -> None:
    looks = 0

    def meanwhile(_: float) -> None:
        nonlocal looks
        looks += 1
        name = ("going", "later")[min(looks, 2) - 1]
        shutil.rmtree(sweep / "runs" / name, ignore_errors=True)
        shutil.copytree(finished, sweep / "runs" / name)

    said = io.StringIO()
    lines = watch_runs([sweep], Console(file=said, force_terminal=terminal, width=120), wait=meanwhile)
    assert looks == 2
    assert [line.status for line in lines] == ["finished"] * 3
    assert "3 runs: 3 finished" in said.getvalue()
    assert ("▁" in said.getvalue()) == terminal


def test_alarms_are_shown(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "run")
    place = tmp_path / "run" / "rounds.jsonl"
    rows = [
        {**json.loads(line), "alarms": ["collapse: [bold]all[/bold] of class 1"]}
        for line in place.read_text().splitlines()
    ]
    place.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert "4 (collapse: [bold]all[/bold] of class 1)" in call("watch", str(tmp_path / "run"), "--once").out


def test_what_is_not_there_is_refused_in_one_line(tmp_path: Path) -> None:
    assert "there is no such folder" in call("watch", str(tmp_path / "none"), "--once").line


def test_sparklines_and_times() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert sparkline([5.0, 5.0]) == "▁▁"
    assert sparkline([]) == ""
    assert len(sparkline([float(value) for value in range(1000)])) == 16
    assert [duration(seconds) for seconds in (5, 65, 3700)] == ["5 s", "1 min 5 s", "1 h 1 min"]
