"""Scenarios: valid splits or a clear refusal, and the same split for the same seed."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semifed.data.partitions import Indices
from semifed.data.scenario import SCENARIOS, Scenario, ScenarioSettings, make
from semifed.errors import DataError, SemifedError, SettingError

DIGITS = [str(number) for number in range(10)]
LABELS = np.arange(700) * 7919 % 10  # 600 training and 100 test samples
PAIRS = ("noniid-1-pairs", "noniid-2-pairs")
LOSSLESS = {"iid", "noniid", "noniid-1", "noniid-2", "noniid-3", *PAIRS, "dirichlet", "shards"}


def split(seed: int = 0, **chosen: Any) -> Scenario:
    return make(ScenarioSettings(**{"clients": 10, **chosen}), LABELS, 600, seed, DIGITS)


def everything(scenario: Scenario) -> Indices:
    parts = [scenario.server.labelled, scenario.server.unlabelled, scenario.validation, scenario.test, scenario.unused]
    for holding in scenario.clients:
        parts += [holding.labelled, holding.unlabelled]
    return np.concatenate(parts)


@st.composite
def chosen_settings(draw: st.DrawFn) -> ScenarioSettings:
    partition = draw(st.sampled_from(sorted(SCENARIOS)))
    labels: Any = draw(st.sampled_from(SCENARIOS[partition].labels))
    budgets: list[dict[str, Any]] = [{"gamma": 0.3}]
    if partition != "noniid-3":
        if partition != "dirichlet-pool" or labels == "server":  # else a class may be held too rarely to label 4 of it
            budgets += [{"total": 33}, {"per_class": 4}]
        budgets += [{"per_class_client": 1}] if labels == "client" and partition not in PAIRS else []
    more: dict[str, Any] = draw(st.sampled_from([{}, {"pool": "all", "test": 50, "validation": 20}]))
    return ScenarioSettings(
        labels=labels,
        partition=partition,
        clients=100 if partition in PAIRS else draw(st.integers(5, 30)),
        alpha=draw(st.sampled_from([0.01, 0.5, 100.0])),
        arrivals=draw(st.integers(2, 4)) if partition == "streaming" else draw(st.integers(1, 3)),
        server_unlabelled=draw(st.sampled_from([0.0, 1.5])) if labels == "server" else 0.0,
        allow_missing=True,
        **draw(st.sampled_from(budgets)),
        **more,
    )


@settings(max_examples=150, deadline=None)
@given(chosen=chosen_settings(), seed=st.integers(0, 2**63))
def test_any_split_is_disjoint_complete_and_a_function_of_the_seed(chosen: ScenarioSettings, seed: int) -> None:
    scenario = make(chosen, LABELS, 600, seed, DIGITS)
    assert np.array_equal(np.sort(everything(scenario)), np.arange(700))
    if chosen.partition in LOSSLESS:
        assert scenario.unused.size == 0
    if chosen.labels == "server":
        assert all(holding.labelled.size == 0 for holding in scenario.clients)
    else:
        assert len(scenario.server) == 0
    expected_test = np.arange(600, 700) if chosen.pool == "train" else scenario.test
    assert np.array_equal(scenario.test, expected_test)
    assert scenario.test.size == (chosen.test or 100)
    for client, holding in enumerate(scenario.clients):
        parts = [scenario.unlabelled_at(client, step * 10) for step in range(chosen.arrivals)]
        assert np.array_equal(np.concatenate(parts), holding.unlabelled)
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert make(chosen, LABELS, 600, seed, DIGITS).digest() == scenario.digest()
    assert make(chosen, LABELS, 600, seed + 1, DIGITS).digest() != scenario.digest()


@settings(max_examples=100, deadline=None)
@given(
    labels=st.lists(st.integers(0, 9), min_size=2, max_size=60),
    partition=st.sampled_from(sorted(SCENARIOS)),
    at=st.sampled_from(["client", "server"]),
    clients=st.integers(1, 100),
    budget=st.sampled_from(["gamma", "per_class", "per_class_client", "total"]),
    amount=st.integers(1, 20),
    allow_missing=st.booleans(),
)
def test_odd_data_give_a_valid_split_or_a_refusal(
    *, labels: list[int], partition: str, at: Any, clients: int, budget: str, amount: int, allow_missing: bool
) -> None:
    asked: dict[str, Any] = {budget: amount / 20 if budget == "gamma" else amount, "allow_missing": allow_missing}
    try:
        chosen = ScenarioSettings(labels=at, partition=partition, clients=clients, arrivals=2, **asked)
        scenario = make(chosen, np.array(labels), len(labels) - 1, 0, DIGITS)
    except SemifedError:
        return
    assert np.array_equal(np.sort(everything(scenario)), np.arange(len(labels)))
    assert allow_missing or not scenario.missing


GOLDEN = {
    "iid": ({}, "d50e46756d99f55d361ac0dc0b85e3e5914e81b62c65b6eae8f3ae50a9af274f"),
    "noniid-2": (
        {"partition": "noniid-2", "gamma": 0.2},
        "1926a68dec4ed93e222678228143e52bf969dd8ffc3b64ac17e49db882162012",
    ),
    "dirichlet": (
        {"partition": "dirichlet", "labels": "server", "alpha": 0.3, "per_class": 5},
        "b7606efc39b1ac19271a0c72d7ca4523d1d0dcd9216887b27063ead32fbad642",
    ),
    "streaming": (
        {"partition": "streaming", "per_class_client": 2, "arrivals": 5, "pool": "all", "test": 80, "validation": 40},
        "75e4e788914fa3939bd7f198e1220a3d9a3dc26aab63dd286b12b950f48f214c",
    ),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_digests_do_not_drift(name: str) -> None:
    chosen, digest = GOLDEN[name]
    assert split(7, **chosen).digest() == digest


def test_parts_of_a_split_have_their_own_randomness() -> None:
    common: dict[str, Any] = {"labels": "server", "pool": "all", "test": 50, "validation": 50, "total": 40}
    one, other = split(**common), split(**common, partition="dirichlet")
    assert np.array_equal(one.test, other.test)
    assert np.array_equal(one.validation, other.validation)
    assert np.array_equal(one.server.labelled, other.server.labelled)


def test_arrivals_bring_the_clients_mix_each_time() -> None:
    scenario = split(partition="streaming", per_class_client=1, arrivals=3, rounds_per_arrival=4)
    mix = scenario.table(LABELS).unlabelled[2] / 3
    for first_round in (0, 4, 8):
        part = scenario.unlabelled_at(2, first_round)
        assert np.array_equal(part, scenario.unlabelled_at(2, first_round + 3))
        assert np.abs(np.bincount(LABELS[part], minlength=10) - mix).max() < 1
    assert np.array_equal(scenario.unlabelled_at(2, 8), scenario.unlabelled_at(2, 1000))
    assert not np.array_equal(scenario.unlabelled_at(2, 3), scenario.unlabelled_at(2, 4))


def test_the_server_may_hold_unlabelled_data_too() -> None:
    scenario = split(labels="server", gamma=0.05, server_unlabelled=5.0)
    assert scenario.server.labelled.size == 30
    assert scenario.server.unlabelled.size == 150
    assert sum(len(holding) for holding in scenario.clients) == 420
    with pytest.raises(SettingError, match=r"scenario.server_unlabelled: 600 images, but there are only 570"):
        split(labels="server", gamma=0.05, server_unlabelled=20)


def test_clients_without_labels_without_unlabelled_data_or_empty_are_legal() -> None:
    assert all(holding.labelled.size == 0 for holding in split(labels="server").clients)
    assert all(holding.unlabelled.size == 0 for holding in split(gamma=1).clients)
    many = split(clients=1000)
    assert many.active().size == 600
    assert set(many.active().tolist()) == {number for number, holding in enumerate(many.clients) if len(holding)}
    poor = split(clients=300, total=10)
    assert sum(holding.labelled.size == 0 for holding in poor.clients) == 290


def test_ten_thousand_clients_are_quick_to_hold_and_to_reload(tmp_path: Path) -> None:
    labels = np.arange(70000) % 10
    scenario = make(ScenarioSettings(clients=10000), labels, 60000, 0, DIGITS)
    assert {len(holding) for holding in scenario.clients} == {6}
    scenario.save(tmp_path / "many.split")
    assert (tmp_path / "many.split").stat().st_size < 2_000_000
    assert Scenario.load(tmp_path / "many.split").digest() == scenario.digest()


def test_a_thousand_classes_work_and_one_does_not() -> None:
    labels = np.arange(5000) % 1000
    names = [f"kind {number}" for number in range(1000)]
    scenario = make(ScenarioSettings(per_class=2, partition="dirichlet"), labels, 4000, 0, names)
    assert sum(holding.labelled.size for holding in scenario.clients) == 2000
    with pytest.raises(DataError, match="needs at least two"):
        make(ScenarioSettings(), np.zeros(50, np.int64), 40, 0, ["only"])


def test_too_few_labels_are_refused_unless_allowed() -> None:
    with pytest.raises(DataError, match=r"scenario.total: 6 gives 6 labels for 10 classes"):
        split(total=6)
    with pytest.raises(DataError, match=r"scenario.gamma: 0.01 gives 6 labels for 10 classes"):
        split(labels="server", gamma=0.01)
    assert len(split(total=6, allow_missing=True).missing) == 4
    with pytest.raises(DataError, match="no sample with a label of class cat, dog;"):
        make(ScenarioSettings(clients=5), np.arange(100) % 3, 90, 0, ["a", "b", "c", "cat", "dog"])


@pytest.mark.parametrize(
    ("labels", "train", "problem"),
    [
        (np.array([0, 1, 10, 2]), 3, "sample 2 has label 10; it must be from 0 to 9"),
        (np.array([0, -2, 1, 2]), 3, "sample 1 has label -2.*or -1 for no label"),
        (np.array([-1, -1, -1, 2]), 3, "no training sample has a label"),
        (np.array([0.0, 1.0]), 1, "whole numbers, not float64"),
        (np.zeros((2, 2), np.int64), 1, "of shape"),
        (np.array([0, 1]), 3, "training set of 3 does not fit"),
        (np.array([0, 1]), 2, "no test set"),
    ],
)
def test_bad_labels_are_refused(labels: Any, train: int, problem: str) -> None:
    with pytest.raises(DataError, match=problem):
        make(ScenarioSettings(clients=2), labels, train, 0, DIGITS)


@pytest.mark.parametrize(
    ("chosen", "problem"),
    [
        ({"alpha": 0}, "scenario.alpha: must be above 0, not 0"),
        ({"alpha": float("nan")}, "scenario.alpha"),
        ({"alpha": True}, "scenario.alpha"),
        ({"gamma": 0.0}, "scenario.gamma: must be above 0 and at most 1"),
        ({"gamma": 1.01}, "scenario.gamma"),
        ({"gamma": "0.1"}, "scenario.gamma"),
        ({"clients": 0}, "scenario.clients: must be at least 1 and at most 1000000, not 0"),
        ({"clients": 2.5}, "scenario.clients"),
        ({"clients": True}, "scenario.clients"),
        ({"clients": None}, "scenario.clients"),
        ({"total": 0}, "scenario.total"),
        ({"per_class": -1}, "scenario.per_class"),
        ({"validation": -1}, "scenario.validation"),
        ({"arrivals": 0}, "scenario.arrivals"),
        ({"rounds_per_arrival": 0}, "scenario.rounds_per_arrival"),
        ({"server_unlabelled": -1.0, "labels": "server"}, "scenario.server_unlabelled"),
        ({"server_unlabelled": 1.0}, "scenario.server_unlabelled: only with labels"),
        ({"labels": "nowhere"}, "scenario.labels: 'nowhere' is unknown; known are: client, server"),
        ({"pool": "some"}, "scenario.pool"),
        ({"pool": "all"}, "scenario.test: pool"),
        ({"test": 10}, "scenario.test: the official"),
        ({"allow_missing": 1}, "scenario.allow_missing"),
        ({"partition": "dirichelt"}, "scenario.partition: 'dirichelt' is unknown; did you mean dirichlet?"),
        ({"partition": 3}, "scenario.partition: expected text, not 3"),
        ({"partition": "noniid-3", "labels": "server"}, 'does not fit labels = "server"; use one of iid'),
        ({"partition": "noniid-1-pairs", "clients": 10}, "scenario.clients: noniid-1-pairs is defined for 100"),
        ({"partition": "streaming"}, "scenario.arrivals: streaming needs"),
        ({"gamma": 0.1, "total": 50}, "scenario.total: the label budget is already given by gamma"),
        ({"labels": "server", "per_class_client": 5}, "scenario.per_class_client: with labels"),
        ({"labels": "server", "gamma": 1.0}, "scenario.gamma: with labels"),
        ({"partition": "noniid-3", "gamma": 0.04}, "scenario.gamma: noniid-3"),
        ({"partition": "noniid-3", "total": 40}, "scenario.total: noniid-3"),
    ],
)
def test_settings_out_of_range_are_refused(chosen: dict[str, Any], problem: str) -> None:
    with pytest.raises(SettingError) as caught:
        ScenarioSettings(**chosen)
    assert problem in str(caught.value)


def test_the_default_budget_is_a_tenth() -> None:
    assert ScenarioSettings().budget == ("gamma", 0.1)
    assert dataclasses.replace(ScenarioSettings(), total=50).budget == ("total", 50)


def test_no_room_for_held_out_sets_or_clients() -> None:
    with pytest.raises(SettingError, match=r"scenario.validation: 600 images, but there are only 600"):
        split(validation=600)
    with pytest.raises(SettingError, match=r"scenario.test: 800 images"):
        split(pool="all", test=800)
    with pytest.raises(DataError, match="nothing is left for the clients"):
        split(labels="server", per_class=60)
