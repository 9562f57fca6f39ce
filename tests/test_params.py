"""Arithmetic on trees of tensors, by hand."""

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from semifed import params
from semifed.methods.losses import sq_dist


class Pair(NamedTuple):
    left: Tensor
    right: dict[str, Tensor]


def tree(scale: float = 1.0) -> dict[str, Any]:
    return {
        "net": {"w": torch.tensor([1.0, 2.0]) * scale, "n": torch.tensor(3)},
        "pair": Pair(torch.tensor([[4.0]]) * scale, {"x": torch.tensor(5.0) * scale}),
    }


def test_tree_map_goes_leaf_by_leaf_and_keeps_the_shape() -> None:
    doubled = params.tree_map(lambda one, two: one + two, tree(), tree(10))
    assert doubled["net"]["w"].tolist() == [11, 22]
    assert doubled["net"]["n"].item() == 6
    assert isinstance(doubled["pair"], Pair)
    assert doubled["pair"].right["x"].item() == 55
    assert params.tree_map(lambda leaf: leaf, (torch.ones(1), ())) == (torch.ones(1), ())
    with pytest.raises(KeyError):
        params.tree_map(torch.add, tree(), {"net": {}})
    assert [leaf.sum().item() for leaf in params.leaves(tree())] == [3, 3, 4, 5]


def test_pick_layer_and_add() -> None:
    assert list(params.pick({"a": 1, "b": 2, "c": 3}, ("c", "a"))) == ["c", "a"]
    assert [params.layer(name) for name in ("conv1.weight", "head.0.bias", "scale")] == ["conv1", "head.0", ""]
    left = {"w": torch.tensor([1.0, 2.0]), "running": torch.tensor(4.0), "n": torch.tensor(2)}
    total = params.add(left, {"w": torch.tensor([0.5, -2.0]), "elsewhere": torch.tensor(1.0)})
    assert total["w"].tolist() == [1.5, 0]
    assert set(total) == set(left)
    assert total["n"] is left["n"]


def test_mix_weighs_numbers_and_leaves_counters_alone() -> None:
    one = {"w": torch.tensor([1.0, 2.0]), "n": torch.tensor(7), "h": torch.tensor([1.0], dtype=torch.float16)}
    two = {"w": torch.tensor([3.0, 6.0]), "n": torch.tensor(9), "h": torch.tensor([3.0], dtype=torch.float16)}
    mixed = params.mix((0.25, one), (torch.tensor(0.75), two))
    assert mixed["w"].tolist() == [2.5, 5.0]
    assert mixed["n"].item() == 7
    assert mixed["n"].dtype == torch.int64
    assert mixed["h"].item() == 2.5
    assert mixed["h"].dtype == torch.float16


def test_squared_distance_over_what_both_have() -> None:
    one = {"w": torch.tensor([1.0, 2.0]), "v": torch.tensor(1.0), "n": torch.tensor(7), "only": torch.tensor(100.0)}
    two = {"w": torch.tensor([4.0, -2.0]), "v": torch.tensor(0.5), "n": torch.tensor(1)}
    assert sq_dist(one, two).item() == 9 + 16 + 0.25
    assert sq_dist(one, {}).item() == 0


def test_stack_and_back() -> None:
    stacked = params.stack([tree(), tree(2), tree(3)])
    assert stacked["net"]["w"].tolist() == [[1, 2], [2, 4], [3, 6]]
    assert stacked["net"]["n"].dtype == torch.int64
    assert stacked["pair"].left.shape == (3, 1, 1)
    assert params.at(stacked, 1)["pair"].right["x"].item() == 10
    assert [one["net"]["w"].tolist() for one in params.unstack(stacked, 3)] == [[1, 2], [2, 4], [3, 6]]


def test_what_all_clients_share_is_stacked_without_memory() -> None:
    shared = torch.ones(1000)
    stacked = params.stack([{"w": shared}] * 50)["w"]
    assert stacked.shape == (50, 1000)
    assert stacked.data_ptr() == shared.data_ptr()
    assert stacked.untyped_storage().nbytes() == 4000


def test_expand_as_multiplies_from_the_left() -> None:
    like = torch.ones(2, 3, 4)
    assert params.expand_as(torch.tensor(2.0), like).shape == (1, 1, 1)
    assert (params.expand_as(torch.tensor([1.0, 3.0]), like) * like)[:, 0, 0].tolist() == [1, 3]
    assert params.expand_as(like, like) is not None


def test_flatten_and_back() -> None:
    deep = {"a": {"b": {"w.x": torch.ones(2)}, "c": torch.zeros(())}, "d": torch.tensor([1]), "e": {}, "f": {"g": {}}}
    flat = params.flatten(deep)
    assert set(flat) == {"a/b/w.x", "a/c", "d", "e/", "f/g/"}
    back = params.unflatten(flat)
    assert back["a"]["b"]["w.x"] is deep["a"]["b"]["w.x"]  # type: ignore[index]
    assert back["e"] == {}
    assert back["f"] == {"g": {}}
    assert set(back) == set(deep)
    assert params.unflatten(params.flatten({})) == {}
    alone = torch.ones(3)
    assert params.unflatten(params.flatten(alone)) is alone


@pytest.mark.parametrize(
    "bad", [{"a/b": torch.ones(1)}, {"": torch.ones(1)}, {3: torch.ones(1)}, {"a": {"b/": torch.ones(1)}}]
)
def test_names_that_would_not_come_back_are_refused(bad: Any) -> None:
    with pytest.raises(TypeError, match="without a slash"):
        params.flatten(bad)


def test_only_tensors_are_leaves_of_a_file() -> None:
    with pytest.raises(TypeError, match="a/b: expected tensors and dicts of them, not int"):
        params.flatten({"a": {"b": 3}})
