"""FedAvg, FedAvg+ and FedProx: whole rounds of a net with two parameters, computed by hand."""

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from semifed.batch import Batch, Clock, Samples
from semifed.data.scenario import Holding, Scenario, ScenarioSettings
from semifed.data.sources import Dataset
from semifed.data.split import hash_labels
from semifed.engine.assemble import Assembly, assemble
from semifed.engine.local import Task
from semifed.engine.rounds import Progress, begin, run_rounds
from semifed.engine.workers import InProcess
from semifed.experiment import Experiment, TrainSettings
from semifed.methods.base import Method
from semifed.methods.fedavg import FedAvg, FedAvgPlus, FedProx
from semifed.nets.net import Net
from semifed.params import Parts
from semifed.training import ClientTraining, ServerTraining

PIXELS = [51, 102, 204, 255, 0, 153, 102, 204]  # as numbers: 0.2 0.4 0.8 1.0 0.0 0.6, and two to test
LABELS = [0, 1, 0, 1, 1, 0, 0, 1]
WHO = ([0, 1, 2], [3])  # what the two clients hold
SERVER = [4, 5]
RATE = 0.5


class Line(nn.Module):
    """Logits (w x + b, 0): two parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.b = nn.Parameter(torch.tensor(0.5)), nn.Parameter(torch.tensor(-0.25))

    def forward(self, x: Tensor) -> Tensor:
        first = self.w * x.flatten(1) + self.b
        return torch.cat([first, torch.zeros_like(first)], 1)


def world(method: Method, labels: Literal["client", "server"] = "client", **training: Any) -> Assembly:
    """Two clients and a server; labels are with one or the other, and the other samples have none."""
    own = {"epochs": 1, "batch": 100, "lr": RATE, "momentum": 0.0, "weight_decay": 0.0, **training}
    nobody, server = np.empty(0, np.int64), np.array(SERVER)
    clients = tuple(
        Holding(np.array(who), nobody) if labels == "client" else Holding(nobody, np.array(who)) for who in WHO
    )
    sizes = np.array([[holding.unlabelled.size] for holding in clients])
    scenario = Scenario(
        clients=clients,
        server=Holding(nobody, nobody) if labels == "client" else Holding(server, nobody),
        validation=nobody,
        test=np.array([6, 7]),
        unused=server if labels == "client" else nobody,
        arrival_sizes=sizes,
        size=8,
        rounds_per_arrival=1,
        data=hash_labels(np.array(LABELS)),
    )
    scenario.validate()
    pixels = torch.tensor(PIXELS, dtype=torch.uint8).reshape(-1, 1, 1, 1)
    experiment = Experiment(
        data=Dataset("dots", pixels, torch.tensor(LABELS), 6, ("low", "high"), (0.0,), (1.0,), False),
        net=Line(),
        method=method,
        scenario=ScenarioSettings(labels=labels, clients=2),
        train=TrainSettings(rounds=2, clients_per_round=2),
        client=ClientTraining(**own),
        server=ServerTraining(**own),
    )
    assert isinstance(experiment.data, Dataset)
    return assemble(experiment, experiment.data, scenario)


def played(assembly: Assembly, rounds: int = 1) -> tuple[Progress, list[dict[str, Any]]]:
    rows: list[dict[str, Any]] = []
    reached: list[Progress] = []

    def done(row: dict[str, Any], progress: Progress) -> None:
        rows.append(row)
        reached.append(progress)

    run_rounds(assembly, InProcess(assembly.workshop, 5), begin(assembly), done)
    return reached[rounds - 1], rows


Line2 = tuple[float, float]


def slope(line: Line2, samples: Sequence[int]) -> Line2:
    """The gradient of the mean cross-entropy, by hand."""
    w, b = line
    errors = [1 / (1 + math.exp(-(w * PIXELS[one] / 255 + b))) - (LABELS[one] == 0) for one in samples]
    return (
        sum(error * PIXELS[one] / 255 for error, one in zip(errors, samples, strict=True)) / len(samples),
        sum(errors) / len(samples),
    )


def entropy(line: Line2, samples: Sequence[int]) -> float:
    chances = [1 / (1 + math.exp(-(line[0] * PIXELS[one] / 255 + line[1]))) for one in samples]
    right = [one if LABELS[sample] == 0 else 1 - one for one, sample in zip(chances, samples, strict=True)]
    return -sum(map(math.log, right)) / len(samples)


def descend(line: Line2, samples: Sequence[int], epochs: int = 1, mu: float = 0.0) -> Line2:
    w, b = line
    for _ in range(epochs):
        dw, db = slope((w, b), samples)
        w, b = w - RATE * (dw + mu * (w - line[0])), b - RATE * (db + mu * (b - line[1]))
    return w, b


def merge(lines: Sequence[Line2], weights: Sequence[float]) -> Line2:
    return (
        sum(weight * line[0] for line, weight in zip(lines, weights, strict=True)),
        sum(weight * line[1] for line, weight in zip(lines, weights, strict=True)),
    )


def line_of(progress: Progress) -> Line2:
    return progress.server["net"]["w"].item(), progress.server["net"]["b"].item()


START = (0.5, -0.25)
BOTH = {"examples": (0.75, 0.25), "uniform": (0.5, 0.5)}


@pytest.mark.parametrize("weighting", ["examples", "uniform"])
def test_two_rounds_of_fedavg(weighting: Literal["examples", "uniform"]) -> None:
    assembly = world(FedAvg(weighting=weighting), epochs=2)
    expected = START
    for number in (1, 2):
        expected = merge([descend(expected, who, 2) for who in WHO], BOTH[weighting])
        progress, rows = played(assembly, number)
        assert line_of(progress) == pytest.approx(expected, abs=1e-6)
        score = rows[number - 1]["models"]["global"]
        assert score["loss"] == pytest.approx(entropy(expected, [6, 7]), abs=1e-6)
        right = sum((expected[0] * PIXELS[one] / 255 + expected[1] >= 0) == (LABELS[one] == 0) for one in (6, 7))
        assert score["accuracy"] == 50 * right


def test_the_row_of_a_round_by_hand() -> None:
    _, rows = played(world(FedAvg(), epochs=2))
    row = rows[0]
    losses = [(entropy(START, who) + entropy(descend(START, who), who)) / 2 for who in WHO]
    assert row["terms"] == pytest.approx({"cross_entropy": sum(losses) / 2}, abs=1e-6)
    assert row["bytes"] == {"down": 2 * 2 * 4, "up": 2 * 2 * 4}
    assert row["clients"] == [0, 1]
    assert row["round"] == 1
    assert row["server_terms"] == {}
    assert [one["round"] for one in rows] == [1, 2]


@pytest.mark.parametrize("mu", [0.0, 0.7])
def test_a_round_of_fedprox(mu: float) -> None:
    progress, rows = played(world(FedProx(mu=mu), epochs=3))
    assert line_of(progress) == pytest.approx(
        merge([descend(START, who, 3, mu) for who in WHO], BOTH["examples"]), abs=1e-6
    )
    assert rows[0]["terms"].keys() == {"cross_entropy", "proximity"}
    assert bool(rows[0]["terms"]["proximity"]) == bool(mu)


def test_the_pull_of_fedprox_is_mu_times_the_distance() -> None:
    net = Net.of(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)), (1, 1, 2))
    anchor = net.init(0)
    here = {name: value + 1 for name, value in anchor.items()}
    parameters = {name: value.requires_grad_() for name, value in net.weights(here).items()}
    rows = Samples((torch.ones(4, 2),), torch.zeros(4, dtype=torch.int64), torch.ones(4, dtype=torch.bool))
    batch = Batch({"labelled": rows}, Clock(*[torch.tensor(0)] * len(Clock._fields)))
    parts: Parts = {"net": here | parameters, "anchor": anchor}
    proximity = FedProx(mu=0.3).held(net.pass_with(torch.tensor(0)), parts, batch)["proximity"]
    for name, gradient in zip(parameters, torch.autograd.grad(proximity, list(parameters.values())), strict=True):
        assert torch.allclose(gradient, 0.3 * (parts["net"][name] - anchor[name])), name
    assert proximity.item() == pytest.approx(0.15 * sum(value.numel() for value in parameters.values()))


def test_fedavg_plus_repeats_and_augments() -> None:
    pool = FedAvgPlus().reads()["labelled"]
    assert (pool.holds, pool.views, pool.repeat) == ("labelled", ("weak",), 3)
    assert FedAvg().reads()["labelled"].views == ("clean",)
    # In one batch a sample that stands there three times weighs as once; in batches of one it is three steps.
    together, _ = played(world(FedAvgPlus(augment=False)))
    assert line_of(together) == pytest.approx(line_of(played(world(FedAvg()))[0]), abs=1e-6)
    lone = world(FedAvgPlus(augment=False), batch=1)
    up = lone.workshop.train(0, [_task(lone, 1)])[0].up["net"]
    assert (up["w"].item(), up["b"].item()) == pytest.approx(descend(START, WHO[1], 3), abs=1e-6)


def _task(assembly: Assembly, client: int) -> Task:
    return Task(client, {"net": begin(assembly).server["net"]}, {}, 1)


def test_labels_at_the_server_train_the_server_and_clients_change_nothing() -> None:
    assembly = world(FedAvg(), "server", epochs=2)
    progress, rows = played(assembly)
    assert line_of(progress) == pytest.approx(descend(START, SERVER, 2), abs=1e-6)
    expected = (entropy(START, SERVER) + entropy(descend(START, SERVER), SERVER)) / 2
    assert rows[0]["server_terms"]["cross_entropy"] == pytest.approx(expected, abs=1e-6)
    assert rows[0]["terms"] == {}
    outcomes = assembly.workshop.train(0, [_task(assembly, 0), _task(assembly, 1)])
    assert [outcome.examples for outcome in outcomes] == [0, 0]
    assert all((one.up["net"]["w"].item(), one.up["net"]["b"].item()) == START for one in outcomes)
