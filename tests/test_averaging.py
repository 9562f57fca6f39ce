"""How uploads become one, by hand."""

from random import Random

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from semifed.methods.averaging import Weighting, mean, weights
from semifed.methods.base import Cohort
from semifed.params import stack
from semifed.payload import Partial


def cohort(examples: list[int], visits: list[int] | None = None) -> Cohort:
    count = len(examples)
    return Cohort(
        clients=tuple(range(count)),
        examples=torch.tensor(examples),
        visits=torch.tensor(visits or [1] * count),
        round=0,
        rounds=1,
    )


@pytest.mark.parametrize(
    ("weighting", "examples", "visits", "expected"),
    [
        ("examples", [10, 30, 0], None, [0.25, 0.75, 0]),
        ("uniform", [10, 30, 0], None, [0.5, 0.5, 0]),
        ("uniform", [1, 1, 1, 1], None, [0.25] * 4),
        ("examples", [0, 7], None, [0, 1]),
        ("frequency", [5, 9], [1, 3], [0.75, 0.25]),
        ("frequency", [5, 9, 1], [1, 1, 2], [0.375, 0.375, 0.25]),
        ("frequency", [5, 0, 1], [1, 6, 3], [0.75, 0, 0.25]),
        ("frequency", [5, 0], [4, 6], [1, 0]),
    ],
)
def test_weights(weighting: Weighting, examples: list[int], visits: list[int] | None, expected: list[float]) -> None:
    found = weights(cohort(examples, visits), weighting)
    assert found.tolist() == pytest.approx(expected)
    assert found.sum().item() == pytest.approx(1)


def test_a_mean_by_hand_over_a_whole_tree() -> None:
    ups = [
        {"net": {"w": torch.tensor([1.0, 2.0])}, "part": Partial({"v": torch.tensor(4.0)}, {"v": torch.tensor(True)})},
        {
            "net": {"w": torch.tensor([5.0, -2.0])},
            "part": Partial({"v": torch.tensor(8.0)}, {"v": torch.tensor(False)}),
        },
    ]
    merged = mean(stack(ups), torch.tensor([0.25, 0.75]))
    assert merged["net"]["w"].tolist() == [4, -1]
    assert merged["part"].values["v"].item() == 7
    assert merged["part"].sent["v"].item() is True


def test_counters_are_not_averaged_and_keep_their_type() -> None:
    ups = [
        {
            "n": torch.tensor(10),
            "small": torch.tensor([1, 200], dtype=torch.uint8),
            "flag": torch.tensor([False, True]),
        },
        {
            "n": torch.tensor(13),
            "small": torch.tensor([3, 100], dtype=torch.uint8),
            "flag": torch.tensor([False, False]),
        },
    ]
    merged = mean(stack(ups), torch.tensor([0.5, 0.5]))
    assert merged["n"].item() == 13
    assert merged["n"].dtype == torch.int64
    assert merged["small"].tolist() == [3, 200]
    assert merged["small"].dtype == torch.uint8
    assert merged["flag"].tolist() == [False, True]
    assert merged["flag"].dtype == torch.bool


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_numbers_keep_their_type(dtype: torch.dtype) -> None:
    merged = mean({"w": torch.tensor([[1.0], [3.0]], dtype=dtype)}, torch.tensor([0.5, 0.5], dtype=torch.float64))
    assert merged["w"].dtype == dtype
    assert merged["w"].tolist() == [2]


def test_the_mean_of_equals_is_the_same_and_their_order_does_not_matter() -> None:
    values = torch.randn(5, 1000, generator=torch.Generator().manual_seed(0))
    same = mean({"w": values[:1].expand(5, -1)}, weights(cohort([3, 1, 4, 1, 5]), "examples"))["w"]
    assert torch.allclose(same, values[0], atol=1e-6)
    own, order = weights(cohort([3, 1, 4, 1, 5]), "examples"), torch.tensor([4, 2, 0, 1, 3])
    assert torch.allclose(mean({"w": values}, own)["w"], mean({"w": values[order]}, own[order])["w"], atol=1e-6)


@given(
    st.sampled_from(["examples", "uniform", "frequency"]),
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 1000), st.floats(-1e6, 1e6)), min_size=1, max_size=8),
    st.randoms(use_true_random=False),
)
def test_a_mean_lies_between_its_clients_whatever_their_order(
    weighting: Weighting, rows: list[tuple[int, int, float]], draw: Random
) -> None:
    assume(any(examples for examples, _, _ in rows))
    mixed = draw.sample(rows, len(rows))
    means = []
    for order in (rows, mixed):
        examples, visits, values = (list(column) for column in zip(*order, strict=True))
        share = weights(cohort(examples, visits), weighting)
        assert float(share.min()) >= 0
        assert float(share.sum()) == pytest.approx(1)
        assert not any(float(one) for one, count in zip(share, examples, strict=True) if not count)
        means.append(float(mean({"w": torch.tensor(values, dtype=torch.float64)}, share)["w"]))
    counted = [value for examples, _, value in rows if examples]
    assert min(counted) - 1e-6 <= means[0] <= max(counted) + 1e-6
    assert means[0] == pytest.approx(means[1], abs=1e-6)
