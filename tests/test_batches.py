"""The stream of a visit: which samples stand in which step, what is padding, and what nobody may see."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from semifed.batch import Pool
from semifed.data.batches import Plan, Rows, Stream, Supply, When, plan
from semifed.training import ClientTraining

LABELLED = {"labelled": Pool("labelled", ("clean",))}
TWO = {"labelled": Pool("labelled", ("clean",)), "unlabelled": Pool("unlabelled", ("clean", "twice"))}
VIEWS = {
    "clean": lambda images, _: images.float(),
    "twice": lambda images, _: images.float() * 2,
    "keys": lambda _, keys: keys.reshape(-1, 1, 1, 1).double().expand(-1, 1, 2, 2),
}


def supply(labelled: int, unlabelled: int = 0) -> Supply:
    """Labelled samples lie from 100 on with labels 0..9, unlabelled ones from 500 on."""
    return Supply(100 + torch.arange(labelled), torch.arange(labelled) % 10, 500 + torch.arange(unlabelled))


def training(**changes: Any) -> ClientTraining:
    return ClientTraining(**{"epochs": 2, "batch": 4, "unlabelled_batch": 3, **changes})


def made(pools: Mapping[str, Pool], held: Supply, key: int = 1, **changes: Any) -> Plan:
    return plan(pools, held, training(**changes), key)


def read(rows: Rows, steps: slice | Tensor = slice(None)) -> list[int]:
    places: list[int] = rows.place[steps][rows.real[steps]].tolist()
    return places


def stream(plans: list[Plan], pools: Mapping[str, Pool], when: When | None = None) -> Stream:
    content = torch.arange(1000, dtype=torch.int64).reshape(-1, 1, 1, 1).expand(-1, 1, 2, 2)
    return Stream(plans, pools, content, VIEWS, when or When(0, 1, [1] * len(plans)))


def test_every_sample_once_an_epoch_and_the_rest_is_padding() -> None:
    visit = made(LABELLED, supply(10))
    rows = visit.pools["labelled"]
    assert visit.steps == 6
    assert visit.epoch.tolist() == [0, 0, 0, 1, 1, 1]
    assert visit.examples == 10
    for epoch in (slice(0, 3), slice(3, 6)):
        assert sorted(read(rows, epoch)) == list(range(100, 110))
    assert rows.real.sum(1).tolist() == [4, 4, 2, 4, 4, 2]
    assert read(rows, slice(0, 3)) != read(rows, slice(3, 6))
    assert bool((rows.y[~rows.real] == -1).all())
    assert bool((rows.place[~rows.real] == 0).all())
    assert torch.equal(rows.y[rows.real], (rows.place[rows.real] - 100) % 10)


def test_repeated_samples_stand_so_often_but_count_once() -> None:
    pool = {"labelled": Pool("labelled", ("clean",), repeat=3)}
    visit = made(pool, supply(5), epochs=1)
    assert visit.steps == 4
    assert Counter(read(visit.pools["labelled"])) == dict.fromkeys(range(100, 105), 3)
    assert visit.examples == 5
    mixed = made({"all": Pool("all", ("clean",), repeat=2)}, supply(3, 4), epochs=1)
    assert Counter(read(mixed.pools["all"])) == {100: 2, 101: 2, 102: 2, 500: 1, 501: 1, 502: 1, 503: 1}
    assert mixed.examples == 7


def test_drop_last_leaves_out_what_is_not_full_but_never_the_only_batch() -> None:
    visit = made(LABELLED, supply(10), drop_last=True)
    assert visit.steps == 4
    assert bool(visit.pools["labelled"].real.all())
    small = made(LABELLED, supply(3), drop_last=True)
    assert small.steps == 2
    assert small.pools["labelled"].real.sum(1).tolist() == [3, 3]
    assert made(LABELLED, supply(4), drop_last=True).steps == 2


def test_a_batch_larger_than_the_data_is_padded() -> None:
    visit = made(LABELLED, supply(1), batch=50)
    assert visit.steps == 2
    assert visit.pools["labelled"].real.sum(1).tolist() == [1, 1]
    assert visit.pools["labelled"].place.shape == made(LABELLED, supply(1), batch=10**15).pools["labelled"].place.shape
    batches = stream([visit], LABELLED)
    assert batches.batch(0).rows("labelled").y.tolist() == [[0]]


def test_steps_cap_the_visit() -> None:
    assert made(LABELLED, supply(10), steps=4).steps == 4
    assert made(LABELLED, supply(10), steps=100).steps == 6
    assert made(LABELLED, supply(10), steps=4).epoch.tolist() == [0, 0, 0, 1]
    assert torch.equal(
        made(LABELLED, supply(10), steps=4).pools["labelled"].place,
        made(LABELLED, supply(10)).pools["labelled"].place[:4],
    )


def test_the_first_pool_sets_the_epoch_and_the_others_go_round() -> None:
    visit = made(TWO, supply(8, 5), epochs=3)
    assert visit.steps == 6
    rows = visit.pools["unlabelled"]
    assert rows.place.shape == (6, 3)
    assert bool(rows.real.all())
    assert bool((rows.y == -1).all())
    order = rows.place.flatten().tolist()
    for start in (0, 5, 10):
        assert sorted(order[start : start + 5]) == list(range(500, 505))
    assert set(order[15:]) <= set(range(500, 505))
    assert order[:5] != order[5:10] or order[5:10] != order[10:15]
    assert visit.examples == 13


def test_a_pool_that_nobody_holds_has_no_rows_and_the_next_leads() -> None:
    visit = made(TWO, supply(0, 7), epochs=2)
    assert visit.steps == 2 * 3
    assert not bool(visit.pools["labelled"].real.any())
    assert sorted(read(visit.pools["unlabelled"], slice(0, 3))) == list(range(500, 507))
    other = made(TWO, supply(7), epochs=1)
    assert not bool(other.pools["unlabelled"].real.any())
    nothing = made(TWO, supply(0))
    assert (nothing.steps, nothing.examples) == (0, 0)
    assert made(LABELLED, supply(0, 50)).steps == 0


def test_no_label_of_an_unlabelled_sample_appears() -> None:
    pools = {
        "all": Pool("all", ("clean",)),
        "unlabelled": Pool("unlabelled", ("clean",)),
        "labelled": LABELLED["labelled"],
    }
    visit = made(pools, supply(9, 20))
    for rows in visit.pools.values():
        assert bool((rows.y[rows.place >= 500] == -1).all())
        assert bool((rows.y[(rows.place < 500) & rows.real] >= 0).all())


def test_the_order_depends_on_the_key_alone() -> None:
    one, same, other = made(TWO, supply(12, 9), 5), made(TWO, supply(12, 9), 5), made(TWO, supply(12, 9), 6)
    for name in TWO:
        assert torch.equal(one.pools[name].place, same.pools[name].place)
        assert not torch.equal(one.pools[name].place, other.pools[name].place)
    longer = made(TWO, supply(12, 9), 5, epochs=9)
    assert torch.equal(longer.pools["labelled"].place[:6], one.pools["labelled"].place)


@settings(max_examples=60, deadline=None)
@given(
    labelled=st.integers(0, 25),
    unlabelled=st.integers(0, 25),
    epochs=st.integers(1, 3),
    batch=st.integers(1, 12),
    drop_last=st.booleans(),
    steps=st.none() | st.integers(1, 10),
    holds=st.sampled_from(["labelled", "unlabelled", "all"]),
)
def test_any_visit_is_whole(*, holds: Any, labelled: int, unlabelled: int, **chosen: Any) -> None:
    pools = {"first": Pool(holds, ("clean",)), "second": Pool("unlabelled", ("clean",))}
    visit = made(pools, supply(labelled, unlabelled), **chosen)
    first = visit.pools["first"]
    held = {"labelled": labelled, "unlabelled": unlabelled, "all": labelled + unlabelled}[holds]
    assert len(visit.epoch) == len(first.real) == len(visit.pools["second"].real)
    for epoch in range(int(visit.epoch.max()) + 1 if visit.steps else 0):
        counts = Counter(read(first, visit.epoch == epoch))
        assert max(counts.values(), default=0) <= 1
        if held and not chosen["drop_last"] and chosen["steps"] is None:
            assert len(counts) == held
    assert visit.steps <= (chosen["steps"] or 10**6)


def test_a_cohort_is_padded_to_one_shape_and_padding_is_marked() -> None:
    plans = [made(TWO, supply(10, 6), 1), made(TWO, supply(2, 6), 2), made(TWO, supply(0), 3)]
    together = stream(plans, TWO, When(7, 50, [3, 1, 1]))
    assert together.steps == 6
    assert together.lengths.tolist() == [6, 2, 0]
    for step, active in enumerate([[True, True, False], [True, True, False], [True, False, False]]):
        found = together.active(step)
        assert found is not None
        assert found.tolist() == active
    batch = together.batch(2)
    rows = batch.rows("labelled")
    assert rows.views[0].shape == (3, 4, 1, 2, 2)
    assert rows.real.tolist() == [[True, True, False, False], [False] * 4, [False] * 4]
    assert not bool(rows.labelled[1:].any())
    assert batch.clock.round.tolist() == [7, 7, 7]
    assert batch.clock.rounds.tolist() == [50, 50, 50]
    assert batch.clock.visit.tolist() == [3, 1, 1]
    assert batch.clock.epoch.tolist() == [0, 0, 0]
    assert batch.clock.step.tolist() == [2, 2, 2]
    assert stream(plans[:1], TWO).active(5) is None


def test_a_client_reads_the_same_alone_and_in_a_cohort() -> None:
    pools = {"labelled": Pool("labelled", ("clean", "keys")), "unlabelled": Pool("unlabelled", ("keys", "clean"))}
    plans = [made(pools, supply(2, 3), 1), made(pools, supply(11, 7), 2)]
    together = stream(plans, pools)
    for place, visit in enumerate(plans):
        alone = stream([visit], pools)
        for step in range(visit.steps):
            joint, own = together.batch(step), alone.batch(step)
            for name in pools:
                wide, narrow = joint.rows(name), own.rows(name)
                rows = narrow.real.shape[1]
                assert torch.equal(wide.real[place, :rows], narrow.real[0])
                assert not bool(wide.real[place, rows:].any())
                for one, two in zip(wide.views, narrow.views, strict=True):
                    assert torch.equal(one[place, :rows], two[0])


def test_every_row_view_pool_and_step_has_a_key_of_its_own() -> None:
    pools = {"a": Pool("labelled", ("keys", "keys")), "b": Pool("labelled", ("keys",))}
    plans = [made(pools, supply(8), 1), made(pools, supply(8), 2)]
    together = stream(plans, pools)
    seen: list[float] = []
    for step in range(together.steps):
        for rows in together.batch(step).pools.values():
            seen += [value for view in rows.views for value in view[..., 0, 0, 0].flatten().tolist()]
    assert len(set(seen)) == len(seen) == 2 * 4 * 4 * 3


@pytest.mark.parametrize("names", [("clean",), ("twice", "clean")])
def test_views_come_in_the_order_asked_for(names: tuple[str, ...]) -> None:
    pools = {"x": Pool("unlabelled", names)}
    rows = stream([made(pools, supply(0, 3))], pools).batch(0).rows("x")
    factors = {"clean": 1, "twice": 2}
    for name, view in zip(names, rows.views, strict=True):
        assert sorted(view[0, :, 0, 0, 0].tolist()) == [place * factors[name] for place in (500, 501, 502)]


def test_batches_are_the_same_however_many_are_made_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    pools = {"labelled": Pool("labelled", ("keys", "clean"))}
    plans = [made(pools, supply(10), 1), made(pools, supply(7), 2)]
    every = []
    for at_once in (1, 20, 1000):
        monkeypatch.setattr("semifed.data.batches.AT_ONCE", at_once)
        one = stream(plans, pools)
        every.append([one.batch(step) for step in (0, 1, 2, 5, 4, 3)])
    for several in zip(*every, strict=True):
        first, *others = (batch.rows("labelled") for batch in several)
        for other in others:
            assert torch.equal(first.real, other.real)
            assert all(torch.equal(one, two) for one, two in zip(first.views, other.views, strict=True))
        assert len({tuple(batch.clock.step.tolist()) for batch in several}) == 1


def test_few_labelled_samples_are_repeated_up_to_their_share() -> None:
    pools = {"images": Pool("all", ("clean",), repeat=3, share=0.25)}
    for labelled, unlabelled, times in ((2, 60, 10), (2, 59, 10), (10, 30, 3), (10, 0, 3), (0, 5, 0)):
        visit = made(pools, supply(labelled, unlabelled), epochs=1, batch=1000)
        y = visit.pools["images"].y
        assert int((y >= 0).sum()) == times * labelled
