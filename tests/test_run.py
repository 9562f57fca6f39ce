"""Runs from Python: the record, repeatability, and what happens when something goes wrong on the way.

That one worker and two give the same is asked in test_resume, together with their death.
"""

import dataclasses
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from semifed import Dataset, Experiment, run
from semifed.engine import workers
from semifed.engine.assemble import Assembly, prepare
from semifed.engine.rounds import begin, run_rounds
from semifed.engine.workers import Workers
from semifed.errors import SettingError
from semifed.results.files import digest
from semifed.results.record import Record, Row
from toys import TINY, call, contents, environment, plain, rows_in, stop_after, summary_in


def _tiny(*assignments: str) -> Experiment:
    return Experiment.read(None, [*TINY, *assignments])


@pytest.fixture(scope="module")
def whole() -> Record:
    """The tiny experiment, run without a pause and without a folder."""
    return run(_tiny())


_stop_at_two = stop_after(2)


def _same(one: Record, two: Record) -> bool:
    return plain(one.rows) == plain(two.rows) and one.summary["model"] == two.summary["model"]


def test_a_record_holds_rows_summary_and_model(whole: Record) -> None:
    assert [row["round"] for row in whole.rows] == [1, 2, 3, 4]
    assert (whole.summary["status"], whole.summary["rounds"], whole.path) == ("finished", 4, None)
    assert whole.summary["model"] == digest(whole.model)
    assert whole.summary["bytes"]["up"] == sum(row["bytes"]["up"] for row in whole.rows)


def test_the_folder_holds_the_same_as_the_record(whole: Record, tmp_path: Path) -> None:
    record = run(_tiny(), tmp_path / "run")
    assert _same(record, whole)
    assert rows_in(tmp_path / "run") == plain(record.rows)
    assert summary_in(tmp_path / "run") == record.summary
    assert record.path == tmp_path / "run"


def test_36_the_same_seed_gives_the_same_run_and_another_seed_another(whole: Record) -> None:
    assert _same(run(_tiny()), whole)
    assert not _same(run(_tiny("seed=1")), whole)


def test_37_the_order_in_which_workers_finish_does_not_matter(whole: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    def last_first(busy: list[Any]) -> list[Any]:
        while len(ready := wait(busy)) < len(busy):
            pass
        return [busy[-1]] if ready else []

    monkeypatch.setattr(workers, "wait", last_first)
    assembly = prepare(_tiny("engine.workers=3"))
    rows: list[Row] = []
    with closing(Workers(assembly)) as clients:
        progress = run_rounds(assembly, clients, begin(assembly), lambda row, _: rows.append(row))
    assert plain(rows) == plain(whole.rows)
    assert digest(progress.server["net"]) == whole.summary["model"]


def test_watch_hears_of_the_start_and_of_every_round() -> None:
    heard: list[int] = []
    run(_tiny(), watch=lambda event: heard.append(len(event.rows)))
    assert heard == [0, 1, 2, 3, 4]


def test_threads_are_those_of_before(whole: Record) -> None:
    before = torch.get_num_threads()
    run(_tiny("engine.threads=2", "train.rounds=1"))
    assert torch.get_num_threads() == before


def test_a_run_may_be_in_another_thread(whole: Record, tmp_path: Path) -> None:
    records: list[Record] = []
    thread = threading.Thread(target=lambda: records.append(run(_tiny(), tmp_path / "run")))
    thread.start()
    thread.join()
    assert _same(records[0], whole)


def test_a_run_needs_an_experiment(tmp_path: Path) -> None:
    for out in (None, tmp_path / "run"):
        with pytest.raises(SettingError, match="give an experiment"):
            run(out=out)
    assert not any(tmp_path.iterdir())


# objects instead of names


class Own(nn.Sequential):
    """A user's own net."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__(nn.Flatten(), nn.Linear(144, 16), nn.ReLU(), nn.Dropout(dropout), nn.Linear(16, 4))


def _objects(synthetic: Dataset, **changes: Any) -> Experiment:
    torch.manual_seed(3)
    dataset = dataclasses.replace(synthetic, name="mine", **changes.pop("data", {}))
    return dataclasses.replace(_tiny(), data=dataset, net=changes.pop("net", Own()))


def test_a_run_of_own_objects_goes_on(synthetic: Dataset, tmp_path: Path) -> None:
    experiment = _objects(synthetic)
    unbroken = run(experiment)
    with pytest.raises(KeyboardInterrupt):
        run(experiment, tmp_path / "run", watch=_stop_at_two)
    before = contents(tmp_path / "run")
    said = call("run", "--out", str(tmp_path / "run"), "--resume")
    assert said.code == 4
    assert "goes on from Python: run(experiment, out, resume=True)" in said.line
    darker = _objects(synthetic, data={"images": synthetic.images // 2})
    with pytest.raises(SettingError, match="--resume: the data is not what this run was begun with"):
        run(darker, tmp_path / "run", resume=True)
    with pytest.raises(SettingError, match="--resume: the net is not what this run was begun with"):
        run(_objects(synthetic, net=Own(0.5)), tmp_path / "run", resume=True)
    assert contents(tmp_path / "run") == before
    assert _same(run(experiment, tmp_path / "run", resume=True), unbroken)


def test_own_data_of_a_known_name_are_not_mistaken_for_it(synthetic: Dataset, tmp_path: Path) -> None:
    flipped = dataclasses.replace(synthetic, images=synthetic.images.flip(3))
    with pytest.raises(KeyboardInterrupt):
        run(dataclasses.replace(_tiny(), data=flipped), tmp_path / "run", watch=_stop_at_two)
    said = call("run", "--out", str(tmp_path / "run"), "--resume")
    assert said.code == 2
    assert "the data is not what this run was begun with" in said.line


# ten thousand clients

MANY = """
import dataclasses, resource, sys
import torch
from semifed import Dataset, Experiment, run

draw = torch.Generator().manual_seed(0)
images = torch.randint(0, 256, (60_000, 1, 28, 28), dtype=torch.uint8, generator=draw)
labels = torch.arange(60_000) % 10
data = Dataset("many", images, labels, 50_000, tuple("0123456789"), (0.5,), (0.5,), flips=False)
words = ["scenario.clients=10000", "scenario.gamma=0.5", "train.rounds=5", "client.epochs=1", "method=toys:Keeper"]
record = run(dataclasses.replace(Experiment.read(None, words), data=data), sys.argv[1])
print(record.summary["status"], resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


@pytest.mark.slow
def test_ten_thousand_clients_need_little_memory(tmp_path: Path) -> None:
    """Measured: 400 MiB, most of it torch itself; the limit is set to a quarter of the 4 GiB that are allowed."""
    command = [sys.executable, "-c", MANY, str(tmp_path / "run")]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment())
    assert done.stderr == ""
    status, mebibytes = done.stdout.split()
    assert status == "finished"
    assert int(mebibytes) < 1024


def test_ten_thousand_clients_of_whom_most_hold_nothing(tmp_path: Path) -> None:
    record = run(_tiny("scenario.clients=10000", "train.rounds=2"), tmp_path / "run")
    assert record.summary["status"] == "finished"
    assert sum(path.stat().st_size for path in (tmp_path / "run").iterdir()) < 1_000_000


# a given split


def test_a_given_split_must_fit_the_experiment() -> None:
    def split(*assignments: str) -> Any:
        assembly: Assembly = prepare(_tiny(*assignments))
        return assembly.scenario

    with pytest.raises(SettingError, match=r"scenario.clients: is 6, but the split has 9; make them the same"):
        run(_tiny(), split=split("scenario.clients=9"))
    with pytest.raises(SettingError, match=r'the split has labels at the server; set scenario.labels = "server"'):
        run(_tiny(), split=split("scenario.labels=server"))
    with pytest.raises(SettingError, match=r'the split has no labels at the server; set scenario.labels = "client"'):
        run(_tiny("scenario.labels=server"), split=split())


def test_the_module_of_run_is_not_hidden_from_python() -> None:
    assert sys.modules["semifed.run"].run is run


def test_the_nets_that_clients_send_are_tested_if_asked(small: Callable[..., Experiment]) -> None:
    plain = run(small("train.evaluate_every=1"))
    tested = run(small("train.evaluate_every=1", "train.test_clients=true"))
    assert [set(row["models"]) for row in plain.rows] == [{"global"}] * 2
    assert [set(row["models"]) for row in tested.rows] == [{"global", "local"}] * 2
    assert [row["models"]["global"] for row in tested.rows] == [row["models"]["global"] for row in plain.rows]
    # One client a round: what it sends is the server's net.
    alone = run(small("train.test_clients=true", "train.evaluate_every=1", "train.clients_per_round=1"))
    assert all(row["models"]["local"] == pytest.approx(row["models"]["global"]) for row in alone.rows)


def test_a_round_in_which_no_client_counted_has_no_score_of_theirs(small: Callable[..., Experiment]) -> None:
    alone = ("train.rounds=3", "train.clients_per_round=1", "train.test_clients=true", "train.evaluate_every=1")
    record = run(small(*alone, "privacy.noise=1", "privacy.clip=1"))
    told = [row["round"] for row in record.rows if "local" in row["models"]]
    assert 0 < len(told) < 3
    assert record.summary["models"]["global"]["last"]["round"] == 3
    assert record.summary["models"]["local"]["last"]["round"] == told[-1]


@pytest.mark.parametrize("method", ["fedsiam-d", "fedmatch", "fedcon", "fedmix", "ssfl"])
def test_every_kind_of_method_has_a_net_of_a_client(method: str, small: Callable[..., Experiment]) -> None:
    place = ["scenario.labels=server", "scenario.gamma=0.2"] if method in ("fedcon", "fedmix") else []
    record = run(small(f"method={method}", "train.test_clients=true", "scenario.validation=20", *place))
    local = record.rows[-1]["models"]["local"]
    assert 0 <= local["accuracy"] <= 100
    assert local != next(iter(record.rows[-1]["models"].values()))
