"""Robust rules: by hand, their properties, and under methods that average."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import semifed
from semifed.engine.assemble import prepare
from semifed.engine.local import Task
from semifed.engine.robust import centre, geometric_median, krum, median, products, trimmed_mean, trust
from semifed.engine.rounds import begin
from semifed.errors import SettingError
from semifed.experiment import Experiment
from semifed.methods import METHODS
from semifed.methods.base import Visit
from semifed.results.files import digest
from semifed.settings import build
from semifed.trust import AggregateSettings

Make = Callable[..., Experiment]
RULES = ["median", "trimmed-mean", "krum", "multi-krum", "geometric-median"]


def of(*rows: tuple[float, ...]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


# by hand


def test_median_by_hand() -> None:
    assert median(of((1, 9), (2, 8), (100, -7))).tolist() == [2, 8]
    assert median(of((1, 0), (3, 0), (5, 0), (900, 0))).tolist() == [4, 0]


def test_trimmed_mean_by_hand() -> None:
    assert trimmed_mean(of((1,), (2,), (6,), (1000,), (-1000,)), 1).tolist() == [3]
    assert trimmed_mean(of((1,), (2,), (6,)), 0).tolist() == [3]


def test_krum_by_hand() -> None:
    # Five on a line, one of them far: with f = 1 each counts its 2 nearest. Sums: 0: 1+4, 1: 1+1, 2: 1+1, 3: 1+4.
    updates = of((0,), (1,), (2,), (3,), (50,))
    assert krum(products([updates]), 1, 1).tolist() == [0, 1, 0, 0, 0]  # of two that are as near the first
    assert krum(products([updates]), 1, 2).tolist() == [0, 0.5, 0.5, 0, 0]
    assert centre(AggregateSettings(rule="multi-krum", hostile=1), [updates])[0][0].tolist() == [1.5]


def test_the_geometric_median_by_hand() -> None:
    # Of a triangle with equal sides the middle; of points on a line the one in the middle, however far the others.
    height = math.sqrt(3)
    corners = of((0, 0), (2, 0), (1, height))
    assert torch.allclose(geometric_median(products([corners])) @ corners, of((1, height / 3))[0], atol=1e-6)
    line = of((0,), (1,), (1e6,))
    assert torch.allclose(geometric_median(products([line]), 1000) @ line, of((1,))[0], atol=1e-3)


def test_fltrust_by_hand() -> None:
    # The server goes (2, 0). Cosines: 1, 0, -1, and 0.6. Scaled to length 2: (2, 0), out, out, (1.2, 1.6).
    updates, own = of((10, 0), (0, 3), (-4, 0), (3, 4)), of((2, 0))
    one = trust([updates], [own]) @ updates
    assert torch.allclose(one, of(((1 * 2 + 0.6 * 1.2) / 1.6, 0.6 * 1.6 / 1.6))[0])
    assert trust([-own], [own]).tolist() == [0]  # nobody to trust: nothing moves


# properties


def updates_of(data: st.DataObject) -> Tensor:
    count, width = data.draw(st.integers(5, 9)), data.draw(st.integers(1, 4))
    number = st.floats(-100, 100, width=32)
    rows = data.draw(st.lists(st.tuples(*[number] * width), min_size=count, max_size=count))
    return torch.tensor(rows, dtype=torch.float64)


def rule_of(name: str) -> AggregateSettings:
    return build(AggregateSettings, {"rule": name, "hostile": 1})


@pytest.mark.parametrize("name", RULES)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_45_a_rule_is_within_the_updates_and_moves_with_them(name: str, data: st.DataObject) -> None:
    updates, rule = updates_of(data), rule_of(name)
    (one,), factors = centre(rule, [updates])
    slack = 1e-6 * (1 + updates.abs().max())
    assert bool((one <= updates.amax(0) + slack).all())
    assert bool((one >= updates.amin(0) - slack).all())
    assert all(factor >= 0 for factor in factors)
    assert not factors or sum(factors) == pytest.approx(1)
    split = centre(rule, [updates[:, :1], updates[:, 1:]])[0] if updates.shape[1] > 1 else None
    if split:
        assert torch.allclose(torch.cat(split, -1), one, atol=1e-5)


@pytest.mark.parametrize("name", ["median", "trimmed-mean", "geometric-median"])
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_45_the_order_of_clients_does_not_matter(name: str, data: st.DataObject) -> None:
    updates, rule = updates_of(data), rule_of(name)
    order = torch.tensor(data.draw(st.permutations(range(len(updates)))))
    (one,), (other,) = centre(rule, [updates])[0], centre(rule, [updates[order]])[0]
    assert torch.allclose(one, other, atol=1e-4)


@pytest.mark.parametrize("name", RULES)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_45_of_equal_updates_all_rules_are_the_mean(name: str, data: st.DataObject) -> None:
    updates = updates_of(data)
    equal = updates[:1].expand_as(updates)
    assert torch.allclose(centre(rule_of(name), [equal])[0][0], updates[0], atol=1e-9)


@pytest.mark.parametrize("name", ["median", "trimmed-mean", "krum", "multi-krum"])
@settings(max_examples=40, deadline=None)
@given(data=st.data(), far=st.floats(1e3, 1e12))
def test_45_one_hostile_client_cannot_move_it_out_of_the_others(name: str, data: st.DataObject, far: float) -> None:
    honest = updates_of(data)
    hostile = torch.full_like(honest[:1], far)
    one = centre(rule_of(name), [torch.cat([honest, hostile])])[0][0]
    assert bool((one <= honest.amax(0) + 1e-6 * (1 + honest.abs().max())).all())


# in a run


def test_a_mean_of_its_own_is_the_method_as_it_was(small: Make) -> None:
    plain = semifed.run(small())
    assert "factors" not in plain.rows[0]
    assert plain.summary["model"] == semifed.run(small("aggregate.hostile=1")).summary["model"]


@pytest.mark.parametrize("method", METHODS)
def test_every_method_merges_under_a_rule(method: str, small: Make) -> None:
    labels = "client" if "client" in METHODS[method].labels else "server"
    words = [f"method={method}", "scenario.validation=20", f"scenario.labels={labels}", "train.rounds=1"]
    rule = semifed.run(small(*words, "aggregate.rule=median", "client.epochs=1"))
    assert rule.summary["skipped"] == 0
    assert not rule.rows[0]["refused"]


def test_rules_under_fedavg_do_what_they_say(small: Make) -> None:
    words = ("train.rounds=1", "train.clients_per_round=6", "client.epochs=1", "scenario.validation=40")
    runs = {
        rule: semifed.run(small(*words, f"aggregate.rule={rule}", "aggregate.hostile=1"))
        for rule in ["mean", *RULES, "clip", "fltrust"]
    }
    assert len({digest(run.model) for run in runs.values()}) == len(runs)
    assert sorted(runs["krum"].rows[0]["factors"].values()) == [0, 0, 0, 0, 0, 1]
    assert sum(factor > 0 for factor in runs["multi-krum"].rows[0]["factors"].values()) == 3
    assert max(runs["clip"].rows[0]["factors"].values()) == 1
    assert all(factor >= 0 for factor in runs["fltrust"].rows[0]["factors"].values())


def test_the_median_of_a_run_is_that_of_its_uploads(small: Make) -> None:
    experiment = small("train.rounds=1", "train.clients_per_round=3", "scenario.clients=3", "client.epochs=1")
    assembly = prepare(experiment)
    down = experiment.method.download(begin(assembly).server, Visit(0, 0, 0))
    outcomes = assembly.workshop.train(0, [Task(client, down, {}, 1) for client in range(3)])
    wanted = torch.stack([one.up["net"]["head.bias"] for one in outcomes]).median(0).values
    record = semifed.run(experiment.replace("aggregate.rule=median"))
    assert torch.allclose(record.model["head.bias"], wanted, atol=1e-6)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["aggregate.rule=krum", "aggregate.hostile=1"],
            "krum with 1 hostile clients needs rounds of 5",
        ),
        (["aggregate.rule=multi-krum", "aggregate.chosen=4"], "and 4 chosen needs rounds of 6"),
        (["aggregate.rule=trimmed-mean", "aggregate.hostile=2"], "needs rounds of 5 clients, not 4"),
        (["aggregate.rule=fltrust"], "aggregate.rule: fltrust needs images with labels at the server"),
        (["aggregate.rule=medain"], "did you mean median"),
    ],
)
def test_46_rules_that_cannot_hold_are_refused(words: list[str], message: str, small: Make) -> None:
    with pytest.raises(SettingError, match=message):
        small(*words)


def test_46_too_few_are_left_for_the_rule(small: Make) -> None:
    words = ["aggregate.rule=krum", "train.clients_per_round=3", "attack.kind=nans", "attack.clients=[0,1,2]"]
    record = semifed.run(small(*words, "scenario.clients=6", "train.rounds=4"))
    short = [row for row in record.rows if row["hostile"]]
    assert short
    assert all("fewer than the" in row["skipped"] for row in short)


def test_fltrust_follows_the_server(small: Make) -> None:
    words = ["train.clients_per_round=6", "train.rounds=8", "scenario.validation=60", "attack.kind=sign-flip"]
    words += ["attack.share=0.5", "method=fedavg-sl", "client.lr=0.05"]
    best = {
        rule: semifed.run(small(*words, f"aggregate.rule={rule}")).summary["models"]["global"]["last"]["accuracy"]
        for rule in ("mean", "fltrust")
    }
    assert best["fltrust"] > best["mean"] + 20
