"""A user's own net and data: taken as they are if they train as pure functions, and refused by name if not."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import semifed
from semifed.data.sources import Dataset
from semifed.engine.assemble import prepare
from semifed.errors import SettingError
from semifed.experiment import Experiment

Make = Callable[..., Experiment]


class Base(nn.Module):
    """One layer; what a user may get wrong is added by others."""

    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(144, 4)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Any:
        return self.layer(x.flatten(1))


class Dropping(Base):
    def forward(self, x: Tensor) -> Any:
        return F.dropout(super().forward(x), 0.001, self.training)


class Noisy(Base):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x) + (torch.randn(4) if self.training else 0)


class Counting(Base):
    def forward(self, x: Tensor) -> Any:
        if self.training:
            self.count += 1
        return super().forward(x)


class Tracking(Base):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.InstanceNorm1d(1, track_running_stats=True)

    def forward(self, x: Tensor) -> Any:
        return super().forward(self.norm(x.flatten(1)[:, None]))


class Choosing(Base):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x if bool(x.mean() > 0) else -x)


class Pair(Base):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x), x


class Failing(Base):
    def forward(self, x: Tensor) -> Any:
        raise ValueError("only square\nimages")


def experiment(small: Make, module: nn.Module, data: Dataset, *assignments: str) -> Experiment:
    made = small(*assignments)
    parts = {name: getattr(made, name) for name in ("scenario", "train", "client", "engine", "method")}
    return Experiment(data=data, net=module, **parts)


@pytest.mark.parametrize(
    ("module", "problem"),
    [
        (Dropping, r"net: Dropping draws random numbers of its own in training.*use nn\.Dropout"),
        (Noisy, "net: Noisy draws random numbers of its own"),
        (Counting, "net: Counting changes count itself in training"),
        (Tracking, r"net: Tracking changes norm\.running_mean itself in training"),
        (Choosing, r'engine\.mode: Choosing cannot train several clients at once .*set engine\.mode = "single"'),
        (Pair, "net: Pair gives outputs tuple, but the data have 4 classes"),
        (Failing, r"net: Failing does not take images of 1x12x12 \(channels x height x width\): only square$"),
        (lambda: nn.Sequential(nn.Flatten(), nn.LazyLinear(4)), "net: Sequential does not take images of 1x12x12"),
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(144, 3)), r"outputs of shape \(3,\), but the data have 4"),
        (lambda: nn.Conv2d(3, 4, 3), r"net: Conv2d does not take images of 1x12x12 .* to have 3 channels"),
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(100, 4)), "net: Sequential does not take images of 1x12x12"),
    ],
)
def test_a_net_that_would_not_train_right_is_refused_at_the_start(
    small: Make, synthetic: Dataset, module: Callable[[], nn.Module], problem: str
) -> None:
    with pytest.raises(SettingError, match=problem):
        prepare(experiment(small, module(), synthetic))


def test_a_net_that_cannot_be_mapped_trains_alone(small: Make, synthetic: Dataset) -> None:
    record = semifed.run(experiment(small, Choosing(), synthetic, "engine.mode=single", "train.rounds=1"))
    assert record.summary["status"] == "finished"


def test_the_check_leaves_the_random_numbers_of_the_user_alone(small: Make, synthetic: Dataset) -> None:
    module, before = Noisy(), torch.random.get_rng_state()
    with pytest.raises(SettingError):
        prepare(experiment(small, module, synthetic))
    assert torch.equal(before, torch.random.get_rng_state())


def test_own_net_and_own_data_run_from_python(small: Make) -> None:
    pixels = torch.randint(0, 256, (120, 3, 8, 6), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(120) % 2
    pixels[labels == 1, 0] = 255
    data = Dataset("mine", pixels, labels, 100, ("dark", "bright"), (0.5,) * 3, (0.25,) * 3, True)
    with torch.random.fork_rng():
        torch.manual_seed(0)  # a test of luck otherwise: a few rounds do not suit every first draw
        module = nn.Sequential(
            nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Dropout2d(0.1), nn.Flatten(), nn.Linear(144, 2)
        )
    first = {name: value.clone() for name, value in module.state_dict().items()}
    record = semifed.run(experiment(small, module, data, "train.rounds=6", "client.lr=0.1"))
    assert record.rows[-1]["models"]["global"]["accuracy"] >= 95
    assert record.model.keys() == first.keys()
    assert all(torch.equal(value, first[name]) for name, value in module.state_dict().items())
    module.load_state_dict(record.model)
    module.eval()
    with torch.no_grad():
        images = (pixels[100:].float() / 255 - 0.5) / 0.25
        right = (module(images).argmax(1) == labels[100:]).float().mean().item()
    assert 100 * right == pytest.approx(record.rows[-1]["models"]["global"]["accuracy"])
