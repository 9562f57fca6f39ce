"""Runs read back from folders: of one run, of a sweep, of runs that are not done."""

import json
import re
import shutil
from pathlib import Path

import pytest

from semifed import Experiment, collect, run
from semifed.errors import RunError
from semifed.results.collection import groups
from toys import TINY, contents, plain, rows_in, summary_in

pytest_plugins = ("folders",)


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two methods and two seeds, laid out as a sweep."""
    folder = tmp_path_factory.mktemp("sweep")
    names = []
    for method in ("fedavg+", "fedavg"):
        for seed in (1, 0):
            names.append(f"method={method},seed={seed}")
            experiment = Experiment.read(None, [*TINY, f"method={method}", f"seed={seed}", "train.rounds=2"])
            run(experiment, folder / "runs" / names[-1])
    (folder / "sweep.json").write_text(json.dumps({"runs": [{"name": name} for name in names]}))
    return folder


def test_a_run_is_read_as_it_was_written(finished: Path) -> None:
    before = contents(finished)
    (found,) = collect([finished])
    assert found.experiment == Experiment.read(None, TINY).tables()
    assert plain(found.rows) == rows_in(finished)
    assert found.summary == summary_in(finished)
    assert (found.name, found.method, found.seed, found.rounds) == (finished.name, "fedavg", 0, 4)
    assert found.done
    assert found.split().digest() == found.environment["split"]
    assert contents(finished) == before


def test_a_sweep_is_read_in_the_order_of_its_grid(grid: Path) -> None:
    found = collect([grid, grid / "runs" / "method=fedavg,seed=1"])
    assert [(one.method, one.seed) for one in found] == [("fedavg+", 1), ("fedavg+", 0), ("fedavg", 1), ("fedavg", 0)]
    assert [one.name for one in collect([grid / "runs"])] == sorted(one.name for one in found)


def test_a_folder_of_runs_and_sweeps_is_both(grid: Path, finished: Path, tmp_path: Path) -> None:
    shutil.copytree(grid, tmp_path / "b")
    for name in ("a", "c"):
        shutil.copytree(finished, tmp_path / name)
    (tmp_path / "d").mkdir()
    assert [one.path.parent.name for one in collect([tmp_path])] == [tmp_path.name, *["runs"] * 4, tmp_path.name]


def test_runs_of_one_experiment_are_one_group(grid: Path) -> None:
    found = groups(collect([grid]))
    assert [(group.label, [one.seed for one in group.runs]) for group in found] == [
        ("fedavg+", [0, 1]),
        ("fedavg", [0, 1]),
    ]


def test_groups_are_named_by_what_differs(grid: Path, tmp_path: Path) -> None:
    changed = ["method=fedavg", "client.lr=0.1", "scenario.gamma=0.4", "train.rounds=1"]
    run(Experiment.read(None, [*TINY, *changed]), tmp_path / "other")
    labels = [group.label for group in groups(collect([grid, tmp_path / "other"]))]
    assert labels == [
        "fedavg+, gamma=0.5, rounds=2, lr=0.01",
        "fedavg, gamma=0.5, rounds=2, lr=0.01",
        "fedavg, gamma=0.4, rounds=1, lr=0.1",
    ]


def test_a_run_that_was_changed_on_the_way_is_a_group_of_its_own(stopped: Path, finished: Path) -> None:
    rounds, rate = (
        "after round 2: train.rounds: 3 -> 4\n",
        "after round 3: train.rounds: 4 -> 5; client.lr: 0.5 -> 0.01\n",
    )
    (stopped / "overrides.txt").write_text(rounds)
    assert len(groups(collect([stopped, finished]))) == 1
    (stopped / "overrides.txt").write_text(rounds + rate)
    labels = [group.label for group in groups(collect([stopped, finished]))]
    assert labels == [f"fedavg, {rate.strip()}", "fedavg"]


def test_a_copy_that_does_not_say_its_split_is_no_second_seed(finished: Path, tmp_path: Path) -> None:
    for name in ("copy", "more"):
        shutil.copytree(finished, tmp_path / name)
        (tmp_path / name / "environment.json").unlink()
    for given in ([tmp_path], [tmp_path / "copy", finished]):
        (group,) = groups(collect(given))
        assert len(group.runs) == 1
    rows = tmp_path / "more" / "rounds.jsonl"
    rows.write_text(rows.read_text().replace('"accuracy": ', '"accuracy": 1'))
    summary = summary_in(tmp_path / "more") | {"status": "stopped"}
    (tmp_path / "more" / "summary.json").write_text(json.dumps(summary))
    (group,) = groups(collect([tmp_path]))
    assert len(group.runs) == 2


def test_a_run_under_way_is_read_up_to_its_last_whole_line(stopped: Path) -> None:
    (stopped / "summary.json").unlink()
    with (stopped / "rounds.jsonl").open("ab") as file:
        file.write(b'{"round": 4, "mod')
    (found,) = collect([stopped])
    assert (found.status, found.done, len(found.rows), found.summary["rounds"]) == ("begun", False, 3, 3)
    assert found.summary["models"]["global"]["last"]["round"] == 3


def test_a_run_that_goes_on_is_not_read_from_its_old_summary(stopped: Path) -> None:
    (stopped / "summary.json").write_text(json.dumps({"status": "running", "rounds": 1}))
    (found,) = collect([stopped])
    assert (found.status, found.summary["rounds"]) == ("running", 3)


def test_a_folder_that_holds_no_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="nowhere: there is no such folder"):
        collect([tmp_path / "nowhere"])
    with pytest.raises(RunError, match="holds no run"):
        collect([tmp_path])
    with pytest.raises(RunError, match="there is no such folder"):
        collect(["long" * 100])
    for content in ("[]", '{"runs": [1]}', '{"runs": [{}]}', '{"runs": null}'):
        (tmp_path / "sweep.json").write_text(content)
        with pytest.raises(RunError, match=r"sweep\.json: is damaged"):
            collect([tmp_path])
    (tmp_path / "sweep.json").write_text('{"runs": []}')
    assert collect([tmp_path]) == []


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("rounds.jsonl", "no JSON\n", "is damaged"),
        ("rounds.jsonl", "1\n", "is damaged"),
        ("rounds.jsonl", '{"round": 1}\n', "is damaged"),
        ("rounds.jsonl", '{"round": 1, "models": {}, "bytes": {}, "refused": {}, "seconds": 1}\n', "is damaged"),
        ("rounds.jsonl", "", "lacks rounds that summary.json counts"),
        ("summary.json", '{"status": "finished"}', "is damaged"),
        ("experiment.toml", 'method = "my.own"\n', "there is no method 'my.own'"),
        ("experiment.toml", 'seed = "x"\n', "seed: expected"),
        ("experiment.toml", "", "is damaged or not of a run"),
    ],
)
def test_what_is_damaged_is_named(name: str, content: str, said: str, finished: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(finished, tmp_path / "run")
    (folder / name).write_text(content)
    with pytest.raises(RunError, match=f"{re.escape(name)}: .*{said}"):
        collect([folder])
