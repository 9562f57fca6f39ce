"""What all tests share: one thread, one small data set, and experiments that end in a moment."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from semifed.data.sources import Dataset
from semifed.data.sources import load as load_data
from semifed.experiment import Experiment

torch.set_num_threads(1)

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
