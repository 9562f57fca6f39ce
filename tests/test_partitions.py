"""What each partition gives to whom, checked against plain counting."""

from typing import Any

import numpy as np
import pytest

from semifed.data import partitions
from semifed.data.labelling import in_proportion, rich_clients
from semifed.data.partitions import UNUSED, Indices
from semifed.data.scenario import SCENARIOS, Scenario, ScenarioSettings, Table, make
from semifed.errors import DataError, SettingError

DIGITS = [str(number) for number in range(10)]


def stream(seed: int = 0) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(seed))


def uneven_labels(size: int = 6000) -> Indices:
    """Ten classes of different sizes, as MNIST has."""
    share = np.linspace(0.8, 1.2, 10)
    labels = np.repeat(np.arange(10), np.rint(share * size / 10).astype(np.int64))
    return labels[partitions.shuffled(labels.size, stream(9))]


def counts(labels: Indices, owner: Indices, clients: int) -> Indices:
    table = np.zeros((clients, 10), np.int64)
    np.add.at(table, (owner[owner != UNUSED], labels[owner != UNUSED]), 1)
    return table


def split(seed: int = 0, *, size: int = 6000, **settings: Any) -> tuple[Scenario, Table]:
    labels = np.concatenate([uneven_labels(size), np.arange(100) % 10])
    scenario = make(ScenarioSettings(**settings), labels, size, seed, DIGITS)
    return scenario, scenario.table(labels)


def test_every_listed_scenario_has_a_partition() -> None:
    labels = np.arange(1000) % 10
    for name in SCENARIOS:
        arrivals = 2 if name == "streaming" else 1
        owner = partitions.deal(ScenarioSettings(partition=name, arrivals=arrivals), labels, 10, stream())
        assert owner.shape == labels.shape
        assert owner.min() >= UNUSED
        assert owner.max() < 100


def test_iid_gives_everyone_the_same_mix() -> None:
    labels = uneven_labels()
    table = counts(labels, partitions.deal_evenly(labels, 7, stream()), 7)
    assert np.ptp(table, axis=0).max() <= 1
    assert np.ptp(table.sum(axis=1)) <= 1


def test_iid_labels_a_share_gamma_of_each_slice() -> None:
    scenario, table = split(clients=20, gamma=0.15)
    held = table.labelled + table.unlabelled
    assert np.abs(table.labelled - 0.15 * held).max() < 1
    assert np.ptp(table.labelled.sum(axis=1)) <= 2
    assert table.labelled.sum() == 900
    assert scenario.unused.size == 0


def test_small_clients_share_the_labels_out() -> None:
    _, table = split(clients=1000, gamma=0.1)
    assert table.labelled.sum() == 600
    assert table.labelled.sum(axis=1).max() == 1


@pytest.mark.parametrize(("clients", "each"), [(100, 2), (7, 3), (13, 10), (10, 1)])
def test_noniid_1_covers_the_classes_evenly(clients: int, each: int) -> None:
    labels = uneven_labels()
    chosen = partitions.draw_classes(labels, clients, each, stream())
    assert all(len(set(row)) == each for row in chosen.tolist())
    assert np.ptp(np.bincount(chosen.ravel(), minlength=10)) <= 1
    table = counts(labels, partitions.deal_by_class(labels, chosen, stream(1)), clients)
    assert ((table > 0).sum(axis=1) == each).all()
    for column in table.T:
        assert np.ptp(column[column > 0]) <= 1


def test_noniid_1_pairs_of_classes_are_random() -> None:
    labels = np.arange(1000) % 10
    chosen = partitions.draw_classes(labels, 2000, 2, stream())
    pairs = np.zeros((10, 10), np.int64)
    np.add.at(pairs, (chosen.min(axis=1), chosen.max(axis=1)), 1)
    each = pairs[np.triu_indices(10, 1)]  # 2000 clients over 45 pairs
    assert each.min() > 20
    assert each.max() < 75


def test_noniid_1_needs_enough_slots_and_classes() -> None:
    with pytest.raises(SettingError, match=r"classes_per_client: 11 classes a client, but the data have 10"):
        split(partition="noniid-1", classes_per_client=11)
    with pytest.raises(SettingError, match=r"classes_per_client: 3 clients x 2 classes cannot cover 10"):
        split(partition="noniid-1", clients=3)


def test_noniid_1_pairs_are_the_authors_and_lose_nothing() -> None:
    scenario, table = split(partition="noniid-1-pairs")
    held = table.labelled + table.unlabelled
    for client in range(100):
        assert set(np.flatnonzero(held[client]).tolist()) == {client // 10, client % 10}
    assert scenario.unused.size == 0
    assert held.sum() == 6000


@pytest.mark.parametrize(("pairs", "clients", "few", "many"), [("", 20, {2}, {10}), ("-pairs", 100, {1, 2}, {9, 10})])
def test_noniid_2_has_the_labels_of_noniid_1_and_unlabelled_data_of_all(
    pairs: str, clients: int, few: set[int], many: set[int]
) -> None:
    first, one = split(partition=f"noniid-1{pairs}", clients=clients)
    second, two = split(partition=f"noniid-2{pairs}", clients=clients)
    for before, after in zip(first.clients, second.clients, strict=True):
        assert np.array_equal(before.labelled, after.labelled)
    assert np.array_equal(one.unlabelled.sum(axis=1), two.unlabelled.sum(axis=1))
    assert set((one.unlabelled > 0).sum(axis=1).tolist()) == few
    assert set((two.unlabelled > 0).sum(axis=1).tolist()) <= many


def test_noniid_3_gives_ten_clients_55_percent_and_the_others_5() -> None:
    _, table = split(partition="noniid-3", gamma=0.1)
    share = table.labelled.sum(axis=1) / (table.labelled + table.unlabelled).sum(axis=1)
    assert share[:10] == pytest.approx(0.55, abs=0.03)
    assert share[10:] == pytest.approx(0.05, abs=0.03)
    assert table.labelled.sum() == pytest.approx(600, abs=5)


@pytest.mark.parametrize("gamma", [0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 1.0])
def test_noniid_3_share_is_the_authors_formula_and_keeps_the_budget(gamma: float) -> None:
    rich, share = rich_clients(gamma, 100)
    assert rich == round(100 * gamma)
    assert share == pytest.approx((105 * gamma - 5) / (100 * gamma))
    for clients in range(1, 40):
        rich, share = rich_clients(gamma, clients)
        assert 0.05 - 1e-9 <= share <= 1 + 1e-9
        assert rich * share + (clients - rich) * 0.05 == pytest.approx(gamma * clients)


def test_shards_hold_few_classes() -> None:
    labels = uneven_labels()
    table = counts(labels, partitions.deal_shards(labels, 50, 2, stream()), 50)
    assert np.ptp(table.sum(axis=1)) <= 2
    assert (table > 0).sum(axis=1).max() <= 4
    _, noniid = split(partition="noniid", labels="server", clients=50, classes_per_client=1)
    assert (noniid.unlabelled > 0).sum(axis=1).max() <= 2


@pytest.mark.parametrize("alpha", [1e-320, 1e-6, 0.01, 1.0, 1e6])
def test_dirichlet_draws_are_proportions_for_any_alpha(alpha: float) -> None:
    points = partitions.dirichlet(alpha, (5, 1000), stream())
    assert np.isfinite(points).all()
    assert points.sum(axis=1) == pytest.approx(1)


def test_dirichlet_draws_have_the_right_spread() -> None:
    points = partitions.dirichlet(0.5, (20000, 4), stream())
    assert points.mean(axis=0) == pytest.approx(0.25, abs=0.01)
    assert points.var(axis=0) == pytest.approx(0.25 * 0.75 / 3, abs=0.004)  # p (1 - p) / (4 alpha + 1)


def test_dirichlet_is_skewed_by_a_small_alpha_only() -> None:
    labels = uneven_labels()
    skewed = counts(labels, partitions.deal_dirichlet(labels, 10, 0.05, stream()), 10)
    even = counts(labels, partitions.deal_dirichlet(labels, 10, 1e5, stream()), 10)
    assert skewed.sum() == even.sum() == labels.size
    assert np.ptp(even.sum(axis=1)) < 0.05 * labels.size / 10
    assert (skewed.max(axis=0) > 0.4 * np.bincount(labels)).all()


def test_dirichlet_001_with_a_thousand_clients_ends_with_empty_clients() -> None:
    scenario, table = split(size=60000, partition="dirichlet", alpha=0.01, clients=1000)
    held = (table.labelled + table.unlabelled).sum(axis=1)
    assert held.sum() == 60000
    assert np.array_equal(scenario.active(), np.flatnonzero(held))
    assert 0 < scenario.active().size < 1000


def test_requests_are_served_in_client_order_until_a_class_is_dry() -> None:
    labels = np.arange(100) % 10
    profile = np.zeros((1, 10))
    profile[0, 3] = 1
    owner = partitions.deal_on_request(labels, 5, profile, stream())  # 20 of class 3 each, ten there are
    assert (owner[labels == 3] == 0).all()
    assert (owner[labels != 3] == UNUSED).all()


def test_dirichlet_pool_uses_ten_profiles_and_starves_late_clients() -> None:
    scenario, table = split(size=60000, partition="dirichlet-pool", labels="server", alpha=0.1, gamma=0.01)
    size = table.unlabelled.sum(axis=1)
    assert size.max() == 594
    assert size[-20:].mean() < size[:20].mean()
    mix = table.unlabelled / np.maximum(size, 1)[:, None]
    assert np.abs(mix[0] - mix[10]).max() < 0.1
    assert np.abs(mix[0] - mix[1]).max() > 0.1
    assert scenario.unused.size == 59400 - size.sum()


def test_types_are_fedmatch_profiles_with_balanced_labels() -> None:
    profiles = partitions.type_profiles(10)
    assert profiles.sum(axis=1) == pytest.approx(1)
    assert profiles[5].tolist() == [0.02, 0.03, 0.03, 0.03, 0.15, 0.5, 0.15, 0.03, 0.03, 0.03]
    _, table = split(partition="types", clients=10, per_class_client=5)
    assert (table.labelled == 5).all()
    share = table.unlabelled / table.unlabelled.sum(axis=1)[:, None]
    assert np.diag(share)[:9] == pytest.approx(0.5, abs=0.1)  # for the last client class 9's neighbours have run dry
    with pytest.raises(SettingError, match="ten classes, not 3"):
        partitions.type_profiles(3)
    with pytest.raises(SettingError, match="ten classes, not 3"):
        partitions.ordered_pairs(3, 100)


@pytest.mark.parametrize("partition", ["iid", "dirichlet", "shards", "noniid", "dirichlet-pool"])
def test_per_class_client_gives_the_same_labels_to_every_client(partition: str) -> None:
    _, table = split(partition=partition, clients=10, per_class_client=3)
    assert (table.labelled == 3).all()


def test_per_class_client_counts_held_classes_only_in_noniid_1() -> None:
    _, table = split(partition="noniid-1", clients=20, per_class_client=3)
    assert (np.sort(table.labelled, axis=1)[:, -2:] == 3).all()
    assert (table.labelled.sum(axis=1) == 6).all()
    with pytest.raises(
        SettingError, match=r"per_class_client: client \d+ holds \d+ images of class '\d', fewer than 500"
    ):
        split(partition="noniid-1", clients=20, per_class_client=500)


@pytest.mark.parametrize("labels", ["client", "server"])
def test_budgets_in_numbers(labels: str) -> None:
    def per_class(**budget: Any) -> list[int]:
        _, table = split(labels=labels, clients=10, **budget)
        row = table.labelled.sum(axis=0) + table.server_labelled
        return [int(number) for number in row]

    assert per_class(per_class=7) == [7] * 10
    assert sorted(per_class(total=43)) == [4] * 7 + [5] * 3
    assert per_class(gamma=0.1) == in_proportion(np.bincount(uneven_labels()), 600).tolist()
    with pytest.raises(DataError, match=r"scenario.per_class: class '0' has 480 images, but 481 labels"):
        per_class(per_class=481)


def test_labels_follow_the_clients_own_data() -> None:
    _, table = split(partition="dirichlet", clients=10, alpha=0.3, total=600)
    held = table.labelled + table.unlabelled
    expected = held * 60 / held.sum(axis=0)
    assert np.abs(table.labelled - expected).max() < 1
    assert np.abs((table.labelled - expected).sum(axis=1)).max() < 1.5


def test_a_class_that_the_data_lack_is_not_dealt() -> None:
    labels = np.arange(600) % 5 * 2
    owner = partitions.deal_by_class(labels, partitions.draw_classes(labels, 10, 2, stream()), stream())
    assert set(np.unique(owner)) == set(range(10))
