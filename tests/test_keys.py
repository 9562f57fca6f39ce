"""Keyed randomness: the same everywhere and for ever, and as good as random."""

import numpy as np
import pytest
import torch
from torch import Tensor

from semifed import keys


def some(count: int) -> Tensor:
    return keys.fold(torch.tensor(keys.key(3, "some")), torch.arange(count))


def test_values_never_change() -> None:
    assert keys.key(0, "cohort", 1) == -5502777259869293413
    assert keys.key("a", "b") == -4303437909711754000
    own = torch.tensor(keys.key(7, "test"))
    assert keys.fold(own, torch.arange(3)).tolist() == [6784669913720005564, 5071429835253289308, 8803568883707662562]
    assert keys.uniform(own, 3).tolist() == [0.3677976727485657, 0.2749227285385132, 0.4772424101829529]
    assert keys.integers(own, 8, -2, 5).tolist() == [5, 5, 1, 0, 5, 5, 3, 3]
    assert keys.permutation(12345, 8).tolist() == [4, 2, 6, 0, 3, 1, 5, 7]


def test_a_fold_is_splitmix64() -> None:
    mask, state = 2**64 - 1, 1234567
    state = (state + 0x9E3779B97F4A7C15 * 5) & mask  # the fifth number of the reference generator
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & mask
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & mask
    assert int(keys.fold(torch.tensor(1234567), 4)) & mask == state ^ (state >> 31)


def test_ingredients_and_their_order_and_kind_matter() -> None:
    made = [keys.key(*parts) for parts in [(1, 2), (2, 1), (12,), ("1", 2), ("1", "2"), (1, 2, 0), (), (-1, 2)]]
    assert len(set(made)) == len(made)
    assert keys.key(np.int64(5), "x") == keys.key(5, "x")
    assert all(-(2**63) <= one < 2**63 for one in made)
    assert keys.key(10**30, "big seeds are fine") != keys.key(10**30 + 1, "big seeds are fine")


def test_draws_do_not_depend_on_neighbours_or_count() -> None:
    own = some(6).reshape(2, 3)
    drawn = keys.uniform(own, 10)
    assert drawn.shape == (2, 3, 10)
    assert torch.equal(keys.uniform(own[1, 2], 4), drawn[1, 2, :4])
    assert torch.equal(keys.integers(own, 5, 0, 99)[:, 1], keys.integers(own[:, 1], 5, 0, 99))
    assert torch.equal(keys.fold(own, 7)[0, 1], keys.fold(own[0, 1], torch.tensor(7)))


def test_draws_are_the_same_under_vmap() -> None:
    own = some(5)
    draw = torch.func.vmap(lambda key: (keys.uniform(key, 6), keys.integers(key, 6, 0, 9), keys.fold(key, 3)))
    for mapped, plain in zip(
        draw(own), (keys.uniform(own, 6), keys.integers(own, 6, 0, 9), keys.fold(own, 3)), strict=True
    ):
        assert torch.equal(mapped, plain)


def test_numbers_are_uniform_and_independent() -> None:
    drawn = keys.uniform(some(200), 500)
    assert 0 <= float(drawn.min()) < 0.001
    assert 0.999 < float(drawn.max()) < 1
    counts = torch.histc(drawn, 20, 0, 1)
    assert float(((counts - 5000) ** 2 / 5000).sum()) < 45  # chi-square of 19 degrees of freedom, p = 0.0007
    flat = drawn - 0.5
    for shifted in (flat[:, 1:] * flat[:, :-1], flat[1:] * flat[:-1]):  # of one key in turn, and of keys in turn
        assert abs(float(shifted.mean()) * 12) < 0.012


@pytest.mark.parametrize(("low", "high"), [(0, 1), (-3, 3), (5, 5), (0, 9)])
def test_integers_stay_in_their_range_and_all_occur(low: int, high: int) -> None:
    drawn = keys.integers(some(100), 200, low, high)
    counts = torch.bincount((drawn - low).flatten(), minlength=high - low + 1)
    assert len(counts) == high - low + 1
    expected = 20_000 / len(counts)
    assert bool(((counts - expected).abs() < 5 * expected**0.5).all())


@pytest.mark.parametrize("count", [0, 1, 2, 1000])
def test_a_permutation_has_every_number_once(count: int) -> None:
    order = keys.permutation(keys.key("order", count), count)
    assert sorted(order.tolist()) == list(range(count))


def test_permutations_differ_and_have_no_favourite_place() -> None:
    orders = torch.stack([keys.permutation(keys.key("p", number), 6) for number in range(1200)])
    counts = torch.stack([torch.bincount(orders[:, place], minlength=6) for place in range(6)])
    assert bool(((counts - 200).abs() < 70).all())
    assert len({tuple(order) for order in orders.tolist()}) > 550  # of 720
