"""The form that steps are computed in: by a rule, by the user's word, or by a timing; the numbers stay."""

import dataclasses
import json
import platform
import resource
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import semifed
from semifed.engine import calibrate, memory
from semifed.engine.assemble import prepare
from semifed.engine.local import Form
from semifed.engine.memory import keep_freed_memory
from semifed.experiment import Experiment
from toys import TINY, rows_in

BIG = ("data=synthetic", "net=cifar-cnn", "scenario.clients=2", "train.clients_per_round=2", "train.rounds=1")
SHORT = ("client.steps=2", "client.batch=4", "scenario.gamma=0.5")


def form(*words: str) -> Form:
    return prepare(Experiment.read(None, words)).workshop.form


def test_small_nets_go_all_at_once_and_large_ones_one_by_one_with_channels_last() -> None:
    assert form(*TINY) == Form(mapped=True)
    assert form(*TINY, "engine.mode=single") == Form(mapped=False)
    assert form(*TINY, "engine.mode=single", "engine.layout=channels-last") == Form(False, channels_last=True)
    assert form(*BIG) == Form(False, channels_last=True)
    assert form(*BIG, "engine.layout=channels-first") == Form(False)
    assert form(*BIG, "engine.mode=mapped") == Form(True)


def test_channels_last_changes_nothing_but_the_order_of_sums() -> None:
    records = [
        semifed.run(Experiment.read(None, [*BIG, *SHORT, f"engine.layout=channels-{layout}"]))
        for layout in ("first", "last")
    ]
    one, two = (record.model for record in records)
    assert one.keys() == two.keys()
    for name, value in one.items():
        assert two[name].is_contiguous()
        assert torch.allclose(value.float(), two[name].float(), atol=1e-5)


@pytest.mark.parametrize("winner", list(calibrate.FORMS))
def test_the_fastest_form_is_taken_and_kept(winner: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = calibrate.FORMS[winner]

    def seconds(assembly: Any) -> float:
        engine = assembly.experiment.engine
        return 1.0 if (engine.mode, engine.layout) == (wanted.mode, wanted.layout) else 2.0

    monkeypatch.setattr(calibrate, "_seconds", seconds)
    asked = Experiment.read(None, [*TINY, "engine.mode=fastest", "train.rounds=2"])
    semifed.run(asked, tmp_path / "run")
    environment = json.loads((tmp_path / "run" / "environment.json").read_text())
    assert environment["calibration"][winner] == 1.0
    assert environment["mode"] == wanted.mode
    monkeypatch.setattr(calibrate, "_seconds", lambda _: pytest.fail("timed again"))
    longer = dataclasses.replace(asked, train=dataclasses.replace(asked.train, rounds=3))
    semifed.run(longer, tmp_path / "run", resume=True, override=True)
    assert len(rows_in(tmp_path / "run")) == 3
    assert not any("engine" in line for line in (tmp_path / "run" / "overrides.txt").read_text().splitlines())


def test_a_timing_of_real_steps_finds_a_form(tmp_path: Path) -> None:
    record = semifed.run(Experiment.read(None, [*TINY, "engine.mode=fastest"]), tmp_path / "run")
    timed = json.loads((tmp_path / "run" / "environment.json").read_text())["calibration"]
    assert set(timed) == set(calibrate.FORMS)
    assert all(0 < seconds < 60 for seconds in timed.values())
    assert record.summary["status"] == "finished"


class Unmappable(nn.Module):
    """Asks for a number, which a mapped tensor does not have."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(144, 4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x.flatten(1))
        return y if float(y.detach().sum()) < 1e9 else -y


def test_a_net_that_cannot_be_mapped_has_the_other_forms(tmp_path: Path) -> None:
    asked = dataclasses.replace(Experiment.read(None, [*TINY, "engine.mode=fastest"]), net=Unmappable())
    assert semifed.run(asked, tmp_path / "run").summary["status"] == "finished"
    environment = json.loads((tmp_path / "run" / "environment.json").read_text())
    assert set(environment["calibration"]) == set(calibrate.FORMS) - {"all at once"}
    assert environment["mode"] == "single"


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_freed_memory_is_kept_whatever_its_size() -> None:
    """A block of 64 MiB has 16,384 pages, which the system would have to fetch each time it is asked for."""
    assert keep_freed_memory(all_of_it=True)
    torch.ones(2**24)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(8):
        torch.ones(2**24)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < 4 * 2**14


def test_what_a_large_net_asked_of_the_memory_outlasts_a_small_one(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[tuple[int, int]]()

    def mallopt(*one: int) -> int:
        asked.append((one[0], one[1]))
        return 1

    monkeypatch.setattr("semifed.engine.memory.ctypes.CDLL", lambda _: SimpleNamespace(mallopt=mallopt))
    memory._ask.cache_clear()
    assert all(keep_freed_memory(large) for large in (False, True, False, True))
    memory._ask.cache_clear()
    assert asked[-2:] == [(memory._TRIM_THRESHOLD, memory._KEEP_ALL), (memory._MMAP_MAX, 0)]
    assert len(asked) == len(set(asked)) == 4
