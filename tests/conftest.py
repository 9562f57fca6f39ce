"""What all tests share: one thread, one small data set, and experiments that end in a moment."""

import importlib
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from semifed.data.sources import Dataset
from semifed.data.sources import load as load_data
from semifed.experiment import Experiment

torch.set_num_threads(1)

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores Ctrl-C, and these do not

SMALL = {
    "data": "synthetic",
    "net": "mlp",
    "scenario": {"clients": 6, "gamma": 0.5},
    "train": {"rounds": 2, "clients_per_round": 4},
    "client": {"epochs": 2, "batch": 8},
}


@pytest.fixture(scope="session")
def synthetic() -> Dataset:
    """400 + 100 grey images of 12x12 in four classes."""
    return load_data("synthetic")


@pytest.fixture
def small() -> Callable[..., Experiment]:
    """An experiment of a second, with ``key=value`` assignments and tables on top."""

    def make(*assignments: str, **tables: Any) -> Experiment:
        experiment = Experiment.of({**SMALL, **tables})
        return experiment.replace(*assignments) if assignments else experiment

    return make


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty current folder beside the repository's experiments; modules written here are forgotten again."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    (tmp_path / "experiments").symlink_to(Path(__file__).parent.parent / "experiments")
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]
    importlib.invalidate_caches()
