"""One local step: torch's optimiser to the last digits, mapped as well as alone, and moving averages by hand."""

import copy
import math
from typing import Any, Literal

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from semifed import keys
from semifed.batch import Batch, Clock, Samples
from semifed.engine.step import State, Stepper
from semifed.methods.base import Descend, Follow, Loss, Move, Terms
from semifed.nets.net import Net, Pass
from semifed.params import Parts, at, leaves, stack
from semifed.training import ClientTraining

OPTIMISERS: dict[str, dict[str, Any]] = {
    "plain": {"momentum": 0.0, "weight_decay": 0.0},
    "momentum": {"momentum": 0.9, "weight_decay": 0.0},
    "decay": {"momentum": 0.0, "weight_decay": 0.1},
    "nesterov": {"momentum": 0.8, "weight_decay": 0.05, "nesterov": True},
    "clip": {"momentum": 0.9, "weight_decay": 0.01, "clip": 0.05},
    "wide clip": {"momentum": 0.9, "weight_decay": 0.01, "clip": 1e6},
}


def module(seed: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3))


NET = Net.of(module(), (1, 1, 4))


def clock(**times: int) -> Clock:
    values = dict.fromkeys(Clock._fields, 0) | times
    return Clock(**{name: torch.tensor(value) for name, value in values.items()})


def batch(step: int, rows: int = 6, client: int = 0) -> Batch:
    x = keys.uniform(torch.tensor(keys.key("x", step, client)), rows * 4).reshape(rows, 4) * 2 - 1
    samples = Samples((x,), torch.arange(rows) % 3, torch.ones(rows, dtype=torch.bool))
    return Batch({"all": samples}, clock(step=step))


def loss(net: Pass, parts: Parts, batch: Batch) -> Terms:
    rows = batch.rows("all")
    logits = net(parts["net"], rows.views[0], rows.real)
    return {"fit": F.cross_entropy(logits, rows.y), "size": 0.01 * logits.square().mean()}


def training(**chosen: Any) -> ClientTraining:
    return ClientTraining(**{"lr": 0.3, **chosen})


def steps(
    moves: tuple[Move, ...], parts: Parts, count: int = 4, client: int = 0, **chosen: Any
) -> tuple[Parts, list[Terms]]:
    stepper, state, seen = Stepper(NET, moves, training(**chosen), mapped=False), State(parts, {}), []
    for number in range(count):
        state, (terms, *_) = stepper(state, batch(number, client=client), torch.tensor(number), None)
        seen.append(terms)
    return state.parts, seen


DESCEND = (Descend(("net",), loss),)


@pytest.mark.parametrize("name", OPTIMISERS)
def test_steps_are_those_of_torch(name: str) -> None:
    reference = module().train()
    chosen = {key: value for key, value in OPTIMISERS[name].items() if key != "clip"}
    optimiser = torch.optim.SGD(reference.parameters(), lr=0.3, **chosen)
    parts, seen = steps(DESCEND, {"net": NET.init(0)}, 5, **OPTIMISERS[name])
    for number in range(5):
        optimiser.zero_grad()
        rows = batch(number).rows("all")
        logits = reference(rows.views[0])
        fit, size = F.cross_entropy(logits, rows.y), 0.01 * logits.square().mean()
        (fit + size).backward()
        if "clip" in OPTIMISERS[name]:
            nn.utils.clip_grad_norm_(reference.parameters(), OPTIMISERS[name]["clip"])
        optimiser.step()
        assert torch.allclose(seen[number]["fit"], fit, atol=1e-6)
        assert torch.allclose(seen[number]["size"], size, atol=1e-6)
    for key, value in reference.state_dict().items():
        assert torch.allclose(parts["net"][key], value, atol=1e-6), key


def test_a_step_changes_nothing_in_place() -> None:
    parts = {"net": NET.init(0)}
    before = copy.deepcopy(parts)
    after, _ = steps(DESCEND, parts, 2)
    for name, value in parts["net"].items():
        assert torch.equal(value, before["net"][name])
        assert not after["net"][name].requires_grad


@pytest.mark.parametrize("name", OPTIMISERS)
def test_a_mapped_cohort_steps_as_each_client_alone(name: str) -> None:
    starts = [{"net": NET.init(0) | Net.of(module(seed), (1, 1, 4)).init(0)} for seed in range(3)]
    stepper = Stepper(NET, DESCEND, training(**OPTIMISERS[name]), mapped=True)
    state = State(stack(starts), {})
    for number in range(4):
        together = stack([batch(number, client=client) for client in range(3)])
        state, (terms, *_) = stepper(state, together, torch.full((3,), number), None)
        assert terms["fit"].shape == (3,)
    for client, start in enumerate(starts):
        alone, seen = steps(DESCEND, start, 4, client, **OPTIMISERS[name])
        for key, value in alone["net"].items():
            assert torch.allclose(at(state.parts, client)["net"][key], value, atol=1e-5), key
        assert torch.allclose(terms["fit"][client], seen[-1]["fit"], atol=1e-5)


@pytest.mark.parametrize("name", ["plain", "nesterov"])
def test_a_client_that_is_not_active_stays_as_it_is(name: str) -> None:
    starts = [{"net": NET.init(0)} for _ in range(2)]
    stepper = Stepper(NET, DESCEND, training(**OPTIMISERS[name]), mapped=True)
    state = State(stack(starts), {})
    for number, active in enumerate([[True, False], [True, True], [True, False]]):
        together = stack([batch(number, client=client) for client in range(2)])
        state, _ = stepper(state, together, torch.full((2,), number), torch.tensor(active))
    always, _ = steps(DESCEND, starts[0], 3, 0, **OPTIMISERS[name])
    lone = Stepper(NET, DESCEND, training(**OPTIMISERS[name]), mapped=False)
    once, _ = lone(State(starts[1], {}), batch(1, client=1), torch.tensor(1), None)
    for client, expected in enumerate([always, once.parts]):
        for key, value in expected["net"].items():
            assert torch.allclose(at(state.parts, client)["net"][key].to(value), value, atol=1e-5), key


def test_a_loss_without_a_gradient_moves_nothing() -> None:
    def masked(net: Pass, parts: Parts, batch: Batch) -> Terms:
        return {"none": 0 * loss(net, parts, batch)["fit"]}

    start = NET.init(0)
    parts, seen = steps((Descend(("net",), masked),), {"net": start}, momentum=0.9, weight_decay=0.1)
    assert all(torch.equal(parts["net"][name], value) for name, value in NET.weights(start).items())
    assert float(seen[0]["none"]) == 0


def numbers(**values: float) -> dict[str, Tensor]:
    return {name: torch.tensor([value]) for name, value in values.items()}


def quadratic(*names: str) -> Loss:
    def terms(net: Pass, parts: Parts, batch: Batch) -> Terms:
        return {name: parts[name]["w"].square().sum() for name in names}

    return terms


def test_only_the_named_parts_descend_and_terms_add_up() -> None:
    parts: Parts = {"a": numbers(w=1.0), "b": numbers(w=2.0), "c": numbers(w=3.0)}
    chosen: dict[str, Any] = {"lr": 0.1, "momentum": 0.0, "weight_decay": 0.0}
    moved, seen = steps((Descend(("a", "b"), quadratic("a", "b", "c")),), parts, 1, **chosen)
    assert moved["a"]["w"].item() == pytest.approx(1 - 0.1 * 2)
    assert moved["b"]["w"].item() == pytest.approx(2 - 0.1 * 4)
    assert moved["c"]["w"].item() == 3
    assert {name: term.item() for name, term in seen[0].items()} == {"a": 1, "b": 4, "c": 9}


def test_moves_follow_each_other_with_momentum_of_their_own() -> None:
    parts: Parts = {"a": numbers(w=1.0), "b": numbers(w=1.0)}
    chosen: dict[str, Any] = {"lr": 0.1, "momentum": 0.5, "weight_decay": 0.0}
    moves = (Descend(("a",), quadratic("a")), Descend(("b",), quadratic("a", "b")))
    moved, _ = steps(moves, parts, 2, **chosen)
    assert moved["a"]["w"].item() == pytest.approx(0.8 - 0.1 * (0.5 * 2 + 1.6))
    assert moved["b"]["w"].item() == pytest.approx(moved["a"]["w"].item())


@pytest.mark.parametrize(("decay", "expected"), [(0.9, 0.9 * 5 + 0.1), (0.0, 1.0), (1.0, 5.0), (0, 1.0), (1, 5.0)])
def test_a_moving_average_by_hand(decay: float, expected: float) -> None:
    parts: Parts = {"target": numbers(w=5.0, alone=7.0), "online": numbers(w=1.0, other=2.0)}
    moved, seen = steps((Follow("target", ("online",), decay),), parts, 1)
    assert moved["target"]["w"].item() == pytest.approx(expected)
    assert moved["target"]["alone"].item() == 7
    assert set(moved["target"]) == {"w", "alone"}
    assert moved["online"]["w"].item() == 1
    assert seen == [{}]


def test_a_schedule_follows_the_clock_of_every_client() -> None:
    def rising(now: Clock) -> Tensor:
        return 1 - 1 / (now.visit + 1)

    parts: Parts = {"target": numbers(w=0.0), "backbone": numbers(w=8.0), "head": numbers(v=1.0)}
    move = Follow("target", ("backbone", "head"), rising)
    single = Stepper(NET, (move,), training(), mapped=False)
    state, _ = single(State(parts, {}), Batch({}, clock(visit=3)), torch.tensor(0), None)
    assert state.parts["target"]["w"].item() == pytest.approx(8 / 4)
    mapped = Stepper(NET, (move,), training(), mapped=True)
    together = Batch({}, stack([clock(visit=1), clock(visit=3)]))
    both, _ = mapped(State(stack([parts] * 2), {}), together, torch.zeros(2, dtype=torch.int64), None)
    assert both.parts["target"]["w"].flatten().tolist() == pytest.approx([4, 2])


def test_buffers_are_not_followed_but_come_from_the_parts_own_passes() -> None:
    def both(net: Pass, parts: Parts, batch: Batch) -> Terms:
        rows = batch.rows("all")
        net(parts["target"], rows.views[0] * 3, rows.real)
        return loss(net, {"net": parts["online"]}, batch)

    start = NET.init(0)
    moves = (Descend(("online",), both), Follow("target", ("online",), 0.5))
    parts: Parts = {"online": dict(start), "target": {name: value.clone() for name, value in start.items()}}
    moved, _ = steps(moves, parts, 1)
    mean = "1.running_mean"
    assert not torch.allclose(moved["online"][mean], moved["target"][mean])
    assert int(moved["target"]["1.num_batches_tracked"]) == 1
    alone = NET.pass_with(torch.tensor(0))
    alone(start, batch(0).rows("all").views[0] * 3, batch(0).rows("all").real)
    assert torch.allclose(alone.statistics({"net": start})["net"][mean], moved["target"][mean], atol=1e-6)
    assert torch.allclose(moved["target"]["0.weight"], (start["0.weight"] + moved["online"]["0.weight"]) / 2, atol=1e-6)


def test_every_step_and_move_has_dropout_of_its_own() -> None:
    net = Net.of(nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 3)), (1, 1, 4))
    drawn: list[Tensor] = []

    def watch(run: Pass, parts: Parts, batch: Batch) -> Terms:
        logits = run(parts["net"], torch.ones(20, 4), torch.ones(20, dtype=torch.bool))
        drawn.append(logits.detach())
        return {"x": logits.square().mean()}

    stepper = Stepper(net, (Descend(("net",), watch), Descend(("net",), watch)), training(lr=1e-9), mapped=False)
    state = State({"net": net.init(0)}, {})
    for number in range(2):
        state, _ = stepper(state, batch(0), keys.fold(torch.tensor(3), number), None)
    for one in range(4):
        for two in range(one):
            assert not torch.allclose(drawn[one], drawn[two])
    assert len(list(leaves(state.parts))) == 2


def test_a_parameter_may_be_a_single_number() -> None:
    parts: Parts = {"a": {"w": torch.tensor(3.0)}}
    chosen: dict[str, Any] = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.0, "clip": 1.0}
    alone, _ = steps((Descend(("a",), quadratic("a")),), parts, 1, **chosen)
    assert alone["a"]["w"].item() == pytest.approx(2.9)
    stepper = Stepper(NET, (Descend(("a",), quadratic("a")),), training(**chosen), mapped=True)
    other: Parts = {"a": {"w": torch.tensor(0.2)}}
    both, _ = stepper(State(stack([parts, other]), {}), stack([batch(0)] * 2), torch.zeros(2, dtype=torch.int64), None)
    assert both.parts["a"]["w"].tolist() == pytest.approx([2.9, 0.2 - 0.04])


@pytest.mark.parametrize(
    ("decay", "expected"), [("none", [0.4, 0.4, 0.4]), ("linear", [0.4, 0.3, 0.1]), ("cosine", [])]
)
def test_the_rate_falls_from_round_to_round(decay: Literal["none", "linear", "cosine"], expected: list[float]) -> None:
    chosen = training(lr=0.4, decay=decay)
    expected = expected or [0.4, 0.2 + 0.2 * math.cos(math.pi / 4), 0.2 + 0.2 * math.cos(3 * math.pi / 4)]
    assert [chosen.rate(round, 4) for round in (0, 1, 3)] == pytest.approx(expected)
    stepper = Stepper(NET, DESCEND, training(lr=0.4, decay=decay, momentum=0.0, weight_decay=0.0), mapped=False)
    start, given = State({"net": NET.init(0)}, {}), batch(0)
    moved = []
    for round in (0, 3):
        now, _ = stepper(start, given._replace(clock=clock(round=round, rounds=4)), torch.tensor(0), None)
        moved.append(now.parts["net"]["3.weight"] - start.parts["net"]["3.weight"])
    assert torch.allclose(moved[1] * expected[0], moved[0] * expected[2], atol=1e-7)
