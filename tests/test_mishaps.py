"""Runs in which something goes wrong on the way: what was done is kept, the cause is told, and the run goes on."""

import dataclasses
import errno
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from torch import nn

from semifed import Experiment, Record, run
from semifed.engine.assemble import prepare
from semifed.engine.workers import InProcess, open_clients
from semifed.errors import RunError, SettingError
from semifed.results.files import read_tensors, write_tensors
from semifed.results.folder import RunFolder
from semifed.results.record import Row
from semifed.run import Event
from toys import TINY, plain, rows_in, stop_after, summary_in


def _tiny(*assignments: str) -> Experiment:
    return Experiment.read(None, [*TINY, *assignments])


@pytest.fixture(scope="module")
def whole() -> Record:
    """The tiny experiment, run without a pause and without a folder."""
    return run(_tiny())


def _same(one: Record, two: Record) -> bool:
    return plain(one.rows) == plain(two.rows) and one.summary["model"] == two.summary["model"]


def _fail_in_round(number: int) -> Callable[[Event], None]:
    def watch(event: Event) -> None:
        if len(event.rows) == number:
            raise ZeroDivisionError("a fault of the watcher")

    return watch


def test_a_failed_run_says_so_and_goes_on(whole: Record, tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        run(_tiny("train.checkpoint_every=3"), tmp_path / "run", watch=_fail_in_round(2))
    assert (summary_in(tmp_path / "run")["status"], len(rows_in(tmp_path / "run"))) == ("failed", 2)
    heard: list[int] = []
    record = run(out=tmp_path / "run", resume=True, watch=lambda event: heard.append(len(event.rows)))
    assert heard == [2, 3, 4], "nothing that was done is lost, though it was between two checkpoints"
    assert _same(record, whole)


def test_a_run_that_fails_in_its_first_round_leaves_no_model(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        run(_tiny(), tmp_path / "run", watch=_fail_in_round(0))
    assert summary_in(tmp_path / "run")["models"] == {}
    assert not (tmp_path / "run/model.safetensors").exists()


def test_an_error_while_closing_does_not_hide_the_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise RunError("the disk is full")

    monkeypatch.setattr(RunFolder, "sum_up", full)
    with pytest.raises(ZeroDivisionError) as error:
        run(_tiny(), tmp_path / "run", watch=_fail_in_round(2))
    assert error.value.__notes__ == ["the disk is full"]


@pytest.mark.parametrize("written", [0, 1, 40])
def test_a_disk_that_fills_on_the_way_costs_nothing(
    written: int, whole: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line of round 3 gets only so many bytes onto the disk; the next checkpoint would have room."""
    good = RunFolder.add_row

    def full(folder: RunFolder, row: Row) -> None:
        if row["round"] < 3:
            return good(folder, row)
        with (folder.path / "rounds.jsonl").open("ab") as file:
            file.write(b'{"round": 3, "models": {"global": {"accur'[:written])
        raise RunError(f"rounds.jsonl: {os.strerror(errno.ENOSPC)}")

    monkeypatch.setattr(RunFolder, "add_row", full)
    with pytest.raises(RunError, match="No space left"):
        run(_tiny(), tmp_path / "run")
    monkeypatch.undo()
    assert _same(run(out=tmp_path / "run", resume=True), whole)


def test_ctrl_c_twice_while_a_round_is_written_costs_nothing(
    whole: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = RunFolder.add_row

    def interrupted(folder: RunFolder, row: Row) -> None:
        if row["round"] < 3:
            return good(folder, row)
        with (folder.path / "rounds.jsonl").open("ab") as file:
            file.write(b'{"round": 3, ')
        for _ in range(2):
            psutil.Process().send_signal(2)
        raise AssertionError("the second Ctrl-C ends at once")

    monkeypatch.setattr(RunFolder, "add_row", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(_tiny(), tmp_path / "run")
    monkeypatch.undo()
    assert (summary_in(tmp_path / "run")["status"], summary_in(tmp_path / "run")["rounds"]) == ("stopped", 2)
    assert _same(run(out=tmp_path / "run", resume=True), whole)


def test_one_ctrl_c_waits_until_the_round_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = RunFolder.add_row

    def interrupted(folder: RunFolder, row: Row) -> None:
        if row["round"] == 2:
            psutil.Process().send_signal(2)
        good(folder, row)

    monkeypatch.setattr(RunFolder, "add_row", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(_tiny(), tmp_path / "run")
    assert (summary_in(tmp_path / "run")["rounds"], len(rows_in(tmp_path / "run"))) == (2, 2)


def test_a_run_that_is_stopped_while_it_prepares_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("semifed.engine.assemble.load_data", stop)
    with pytest.raises(KeyboardInterrupt):
        run(_tiny(), tmp_path / "run")
    assert not any(tmp_path.iterdir())


def test_settings_that_are_newer_than_a_run_do_not_keep_it_from_going_on(whole: Record, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(_tiny(), tmp_path / "run", watch=stop_after(2))
    file = tmp_path / "run/checkpoint.safetensors"
    tensors, facts = read_tensors(file)
    older = facts["experiment"].replace("nesterov = false\n", "")
    assert older != facts["experiment"]
    write_tensors(file, tensors, {**facts, "experiment": older})
    assert _same(run(_tiny(), tmp_path / "run", resume=True), whole)


# workers


def test_what_cannot_be_sent_to_a_worker_is_refused() -> None:
    class Local(nn.Flatten):
        pass

    net = nn.Sequential(Local(), nn.Linear(144, 4))
    with pytest.raises(SettingError, match=r"engine.workers: the experiment cannot be sent.*use engine.workers = 1"):
        run(dataclasses.replace(_tiny("engine.workers=2", "engine.start=spawn"), net=net))


def test_no_shared_memory_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: Any) -> None:
        raise RuntimeError("unable to allocate shared memory\nand more")

    monkeypatch.setattr(torch.Tensor, "share_memory_", full)
    with pytest.raises(RunError, match=r"no shared memory for the images \(unable to allocate shared memory\)"):
        run(_tiny("engine.workers=2", "engine.start=spawn"))


def test_a_net_of_one_s_own_script_needs_no_sending_where_workers_are_forked() -> None:
    class Local(nn.Flatten):
        pass

    net, forked = nn.Sequential(Local(), nn.Linear(144, 4)), "engine.start=fork"
    if sys.platform == "linux":
        record = run(dataclasses.replace(_tiny("engine.workers=2", forked), net=net))
        alone = run(dataclasses.replace(_tiny(), net=net))
        assert record.summary["model"] == alone.summary["model"]
    else:
        with pytest.raises(SettingError, match=r"engine\.start: workers can be forked on Linux and the CPU only"):
            run(_tiny("engine.workers=2", forked))


def test_one_worker_needs_no_process() -> None:
    assert isinstance(open_clients(prepare(_tiny())), InProcess)
