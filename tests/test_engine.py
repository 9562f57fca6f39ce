"""The engine: the same numbers whoever trains the clients and in which order, and nobody trained who holds nothing."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from semifed.batch import Pool
from semifed.data.sources import Dataset
from semifed.engine.assemble import Assembly, find_device, prepare
from semifed.engine.local import Outcome, Role, Task
from semifed.engine.rounds import Progress, begin, draw_cohort, run_rounds
from semifed.engine.workers import InProcess, Workers, open_clients
from semifed.errors import DataError, SettingError
from semifed.experiment import Experiment
from semifed.nets.net import Net
from semifed.params import Params, flatten
from semifed.results.evaluate import Examiner
from semifed.results.files import digest
from semifed.results.record import Row

Make = Callable[..., Experiment]
NORMED = {"net": {"name": "mlp", "norm": "batch"}}


def play(assembly: Assembly, clients: Any = None) -> tuple[list[Row], Progress]:
    """All rounds; of a row all but the time that it took."""
    rows: list[Row] = []
    hands = clients or open_clients(assembly)
    try:
        progress = run_rounds(assembly, hands, begin(assembly), lambda row, _: rows.append(row))
    finally:
        hands.close()
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows], progress


def furthest(one: Params, two: Params) -> float:
    return max(float((one[name].double() - two[name].double()).abs().max()) for name in one)


def test_the_same_seed_gives_the_same_run_to_the_last_bit(small: Make) -> None:
    experiment = small(**NORMED, method="fedavg+")
    (rows, first), (again, second) = play(prepare(experiment)), play(prepare(experiment))
    assert rows == again
    assert digest(first.server["net"]) == digest(second.server["net"])
    other, _ = play(prepare(experiment.replace("seed=1")))
    assert other != rows


@pytest.mark.parametrize("start", ["auto", "spawn"])
def test_two_workers_give_the_numbers_of_one_to_the_last_bit(small: Make, start: str) -> None:
    words = ("engine.chunk=3", "engine.workers=2", f"engine.start={start}")
    assembly = prepare(small(*words, **NORMED, method="toys:Keeper"))
    clients = open_clients(assembly)
    assert isinstance(clients, Workers)
    rows, progress = play(assembly, clients)
    alone, single = play(assembly, InProcess(assembly.workshop, 3))
    assert rows == alone
    assert digest(flatten(progress.state())) == digest(flatten(single.state()))
    assert len(progress.kept.state()) > 4


@pytest.mark.parametrize("method", ["fedavg", "fedprox"])
def test_mapped_single_and_chunks_agree(small: Make, method: str) -> None:
    experiment = small("train.rounds=1", "scenario.partition=dirichlet", **NORMED, method=method)
    _, expected = play(prepare(experiment.replace("engine.mode=single")))
    for chunk in (1, 3, 4):
        rows, mapped = play(prepare(experiment.replace("engine.mode=mapped", f"engine.chunk={chunk}")))
        assert furthest(mapped.server["net"], expected.server["net"]) < 1e-5
        assert torch.equal(mapped.visits, expected.visits)
        assert rows[0]["clients"] == play(prepare(experiment))[0][0]["clients"]


class Backwards:
    """Trains the last client first, and one at a time."""

    def __init__(self, assembly: Assembly) -> None:
        self._workshop = assembly.workshop

    def present(self, round: int) -> None:
        return None

    def train(self, round: int, tasks: Sequence[Task]) -> list[Outcome]:
        return [self._workshop.train(round, [task])[0] for task in reversed(tasks)][::-1]

    def close(self) -> None:
        pass


def test_who_is_done_first_does_not_matter(small: Make) -> None:
    assembly = prepare(small(**NORMED))
    rows, progress = play(assembly, Backwards(assembly))
    ordered, expected = play(assembly, InProcess(assembly.workshop, 1))
    assert rows == ordered
    assert digest(progress.server["net"]) == digest(expected.server["net"])


def test_training_leaves_what_it_was_given_as_it_was(small: Make) -> None:
    assembly = prepare(small(**NORMED))
    start = begin(assembly)
    before = digest(start.server["net"])
    tasks = [Task(client, {"net": start.server["net"]}, {}, 1) for client in (0, 1)]
    one = assembly.workshop.train(0, tasks)
    two = assembly.workshop.train(0, tasks)
    assert digest(start.server["net"]) == before
    assert [digest(outcome.up["net"]) for outcome in one] == [digest(outcome.up["net"]) for outcome in two]
    assert digest(one[0].up["net"]) != digest(one[1].up["net"])
    assert one[0].up["net"]["features.2.num_batches_tracked"].dtype == torch.int64


def test_a_client_with_nothing_to_read_weighs_nothing(small: Make) -> None:
    assembly = prepare(small("scenario.gamma=none", "scenario.total=4", "train.clients_per_round=6"))
    labels = [len(holding.labelled) for holding in assembly.scenario.clients]
    assert 0 in labels
    start = begin(assembly).server
    outcomes = assembly.workshop.train(0, [Task(client, dict(start), {}, 1) for client in range(6)])
    assert [outcome.examples for outcome in outcomes] == labels
    idle = outcomes[labels.index(0)]
    assert all(torch.equal(idle.up["net"][name], value) for name, value in start["net"].items())
    _, progress = play(prepare(assembly.experiment.replace("train.rounds=1")))
    weights = torch.tensor(labels) / sum(labels)
    for name, value in progress.server["net"].items():
        expected = sum(weight * outcome.up["net"][name] for weight, outcome in zip(weights, outcomes, strict=True))
        assert torch.allclose(value, torch.as_tensor(expected), atol=1e-6)


def test_if_no_client_has_anything_to_read_the_server_stays(small: Make) -> None:
    experiment = small("scenario.labels=server", "scenario.gamma=0.1", "train.rounds=1")
    assembly = prepare(experiment)
    trained, terms = assembly.workshop.train_server(0, begin(assembly).server)
    rows, progress = play(assembly)
    assert digest(progress.server["net"]) == digest(trained["net"])
    assert rows[0]["server_terms"] == terms
    assert rows[0]["terms"] == {}
    assert digest(trained["net"]) != digest(begin(assembly).server["net"])


def test_a_cohort_has_different_clients_that_hold_something(small: Make) -> None:
    assembly = prepare(small("scenario.clients=600", "train.clients_per_round=20"))
    active = set(assembly.scenario.active().tolist())
    assert len(active) == 400
    drawn = [draw_cohort(assembly, round) for round in range(200)]
    for cohort in drawn:
        assert len(set(cohort)) == 20
        assert cohort == sorted(cohort)
        assert set(cohort) <= active
    counts = Counter(client for cohort in drawn for client in cohort)
    assert max(counts.values()) < 30  # ten each on average
    assert drawn[0] != drawn[1]
    assert draw_cohort(assembly, 3) == drawn[3]
    with pytest.raises(DataError, match="only 400 of 600 clients hold any data, fewer than the 500 a round"):
        prepare(small("scenario.clients=600", "train.clients_per_round=500"))


def test_visits_are_counted(small: Make) -> None:
    rows, progress = play(prepare(small("train.rounds=5")))
    counts = Counter(client for row in rows for client in row["clients"])
    assert progress.visits.tolist() == [counts[client] for client in range(6)]
    assert progress.round == 5
    assert progress.kept.state() == {}


def test_the_order_of_samples_depends_on_seed_round_and_client_alone(small: Make) -> None:
    experiment = small(method="fedprox")

    def order(made: Experiment, round: int = 0, client: int = 0) -> list[int]:
        assembly = prepare(made)
        role = Role((), assembly.experiment.method.reads(), assembly.experiment.client)
        places: list[int] = assembly.workshop._plan(role, round, client).pools["labelled"].place.flatten().tolist()
        return places

    first = order(experiment)
    assert order(small("train.clients_per_round=2", "engine.chunk=1", "engine.mode=single", "client.lr=1.0")) == first
    assert order(experiment, round=1) != first
    assert order(experiment, client=1) != first
    assert order(experiment.replace("seed=1")) != first


def test_streaming_reads_the_arrival_of_the_round(small: Make) -> None:
    assembly = prepare(
        small("train.rounds=30", scenario={"clients": 4, "gamma": 0.2, "arrivals": 3, "rounds_per_arrival": 2})
    )
    role = Role((), {"unlabelled": Pool("unlabelled", ("clean",))}, assembly.experiment.client)
    for round in (0, 1, 2, 4, 29):
        rows = assembly.workshop._plan(role, round, 1).pools["unlabelled"]
        expected = assembly.scenario.unlabelled_at(1, round).tolist()
        assert set(rows.place[rows.real].tolist()) == set(expected)
    first, last = (set(assembly.scenario.unlabelled_at(1, round).tolist()) for round in (1, 29))
    assert not first & last


def test_evaluation_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    net = Net.of(nn.Sequential(nn.Flatten(), nn.Dropout(0.9), nn.Linear(2, 2)), (1, 1, 2))
    weights = {"2.weight": torch.tensor([[1.0, 0.0], [0.0, 1.0]]), "2.bias": torch.zeros(2)}
    images = torch.tensor([[200, 100], [100, 200], [30, 10], [0, 255], [255, 0]], dtype=torch.uint8).reshape(5, 1, 1, 2)
    labels = torch.tensor([0, 1, 1, 1, 0])
    for batch in (1, 2, 5, 100):
        monkeypatch.setattr("semifed.results.evaluate.AT_ONCE", batch)
        score = Examiner(net, images, labels, lambda x, _: x.float() / 255, channels_last=batch == 5)(weights)
        assert score.accuracy == 80
        gaps = [(100, 1), (100, 1), (20, -1), (255, 1), (255, 1)]
        expected = sum(np.log1p(np.exp(-gap * sign / 255)) for gap, sign in gaps) / 5
        assert score.loss == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("name", ["cuda:99", "meta", "toaster", "", "cpu:x"])
def test_a_device_that_is_not_there_is_refused(name: str) -> None:
    with pytest.raises(SettingError, match=r"engine\.device: .* is not to be had here"):
        find_device(name)
    assert find_device("cpu").type == "cpu"
    assert find_device("auto").type in ("cpu", "cuda", "mps")


def test_an_integer_buffer_comes_through_a_run(small: Make, synthetic: Dataset) -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(144, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))
    experiment = Experiment(data=synthetic, net=module, **_tables(small("train.rounds=2")))
    rows, progress = play(prepare(experiment))
    counter = progress.server["net"]["2.num_batches_tracked"]
    assert counter.dtype == torch.int64
    steps = [2 * -(-len(holding.labelled) // 8) for holding in prepare(experiment).scenario.clients]
    assert int(counter) == sum(max(steps[client] for client in row["clients"]) for row in rows)
    assert F.softmax(progress.server["net"]["4.bias"], 0).shape == (4,)


def _tables(experiment: Experiment) -> dict[str, Any]:
    return {name: getattr(experiment, name) for name in ("scenario", "train", "client", "engine")}
