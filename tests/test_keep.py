"""What clients keep, on disk: as large as the cohort's share, found again, and never torn."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import semifed
from semifed.errors import RunError, SettingError
from semifed.experiment import Experiment
from semifed.params import Parts
from semifed.results import keep
from semifed.results.keep import InMemory, OnDisk
from toys import TINY, plain, stop_after

KEEPER = (*TINY, "method=toys:Keeper")


def state(number: float) -> Parts:
    return {"memory": {"a.weight": torch.full((2, 3), float(number)), "empty": {}}, "count": torch.tensor(7)}


def on_disk(folder: Path, clients: int = 9) -> OnDisk:
    return OnDisk(folder / "kept", torch.zeros(clients, dtype=torch.int64))


@pytest.mark.parametrize("disk", [True, False])
def test_a_client_finds_what_it_kept_last(disk: bool, tmp_path: Path) -> None:
    first = on_disk(tmp_path) if disk else InMemory({})
    second = first.after(1, {3: state(1), 8: state(2)})
    third = second.after(2, {3: state(3)})
    assert first.get(3) is None
    for kept, client, number in ((second, 3, 1), (second, 8, 2), (third, 3, 3), (third, 8, 2)):
        found = kept.get(client)
        assert found is not None
        assert torch.equal(found["memory"]["a.weight"], state(number)["memory"]["a.weight"])
        assert found["memory"]["empty"] == {}
        assert int(found["count"]) == 7
    assert third.get(0) is None
    assert third.after(3, {}) is third or not disk


def test_files_go_when_no_checkpoint_needs_them(tmp_path: Path) -> None:
    kept = on_disk(tmp_path)
    for round, clients in enumerate(([1, 2], [3], [1, 2], [1]), 1):
        kept = kept.after(round, {client: state(round) for client in clients})
    assert keep.rounds_of({"kept": kept.state()}) == {2, 3, 4}
    keep.tidy(tmp_path / "kept", {2, 3}, newest=3)
    assert keep.rounds_in(tmp_path / "kept") == {2, 3, 4}  # the last one is newer than the checkpoint
    assert keep.rounds_of({"server": {}}) == set()
    keep.tidy(tmp_path / "nowhere", set(), newest=3)


def test_a_file_that_is_gone_or_damaged_is_named(tmp_path: Path) -> None:
    kept = on_disk(tmp_path).after(1, {3: state(1)})
    path = tmp_path / "kept" / "000001.safetensors"
    whole = path.read_bytes()
    place = whole.rindex(torch.full((2, 3), 1.0).numpy().tobytes()[:4])
    for broken in (whole[: place + 1] + b"?" + whole[place + 2 :], whole[:40], b""):
        path.write_bytes(broken)
        with pytest.raises(RunError, match=r"000001.safetensors: is damaged .*put it back"):
            kept.get(3)
    path.unlink()
    with pytest.raises(RunError, match=r"000001\.safetensors: is gone, which client 3 needs"):
        kept.get(3)


def test_a_run_keeps_the_same_on_disk_as_in_memory_and_only_what_it_needs(tmp_path: Path) -> None:
    experiment = Experiment.read(None, [*KEEPER, "train.rounds=12"])
    there, memory = semifed.run(experiment, tmp_path / "run"), semifed.run(experiment)
    assert plain(there.rows) == plain(memory.rows)
    assert there.summary["model"] == memory.summary["model"]
    files = keep.rounds_in(tmp_path / "run" / "kept")
    assert 12 in files
    assert 1 not in files


def test_a_run_goes_on_from_the_checkpoint_before_with_what_was_kept_then(tmp_path: Path) -> None:
    experiment = Experiment.read(None, [*KEEPER, "train.rounds=8"])
    whole = semifed.run(experiment)
    with pytest.raises(KeyboardInterrupt):
        semifed.run(experiment, tmp_path / "run", watch=stop_after(6))
    record = semifed.run(experiment, tmp_path / "run", resume=True, previous=True)
    assert plain(record.rows) == plain(whole.rows)
    assert record.summary["model"] == whole.summary["model"]


def test_remnants_of_a_kill_are_removed(tmp_path: Path) -> None:
    experiment = Experiment.read(None, KEEPER)
    with pytest.raises(KeyboardInterrupt):
        semifed.run(experiment, tmp_path / "run", watch=stop_after(2))
    (tmp_path / "run" / "kept" / "000003.safetensors.partial").write_bytes(b"half")
    semifed.run(experiment, tmp_path / "run", resume=True)
    assert not list((tmp_path / "run" / "kept").glob("*.partial"))


def test_a_method_that_keeps_other_things_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        semifed.run(Experiment.read(None, KEEPER), tmp_path / "run", watch=stop_after(2))
    for method in ("fedavg", "fedprox"):
        with pytest.raises(SettingError, match="the clients have kept what another method needs"):
            semifed.run(
                Experiment.read(None, [*TINY, f"method={method}"]), tmp_path / "run", resume=True, override=True
            )


def test_a_checkpoint_that_cannot_be_written_ends_the_run_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = semifed.results.checkpoint.save

    def full(folder: Path, round: int, *rest: Any) -> None:
        if round == 2:
            raise RunError("the disk is full")
        real(folder, round, *rest)

    monkeypatch.setattr("semifed.results.checkpoint.save", full)
    with pytest.raises(RunError, match="the disk is full"):
        semifed.run(Experiment.read(None, KEEPER), tmp_path / "run")
    monkeypatch.undo()
    record = semifed.run(Experiment.read(None, KEEPER), tmp_path / "run", resume=True)
    assert plain(record.rows) == plain(semifed.run(Experiment.read(None, KEEPER)).rows)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "finished"
