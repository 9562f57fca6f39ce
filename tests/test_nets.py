"""Nets: the papers' sizes, pure functions over dicts, and any module of a user's own."""

from collections.abc import Callable
from typing import Literal

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from semifed import keys
from semifed.errors import SettingError
from semifed.nets.net import Net
from semifed.nets.zoo import NETS, NetSettings, choose, make
from semifed.params import Parts

GREY, COLOUR = (1, 28, 28), (3, 32, 32)
KEY = torch.tensor(keys.key("nets"))
ALL = torch.tensor(True)
Norm = Literal["batch", "group", "none"]


def images(rows: int, shape: tuple[int, int, int]) -> Tensor:
    return keys.uniform(keys.fold(KEY, torch.arange(rows)), torch.Size(shape).numel()).reshape(rows, *shape)


@pytest.mark.parametrize(
    ("name", "shape", "size"),
    [
        ("mnist-cnn", GREY, 21_840),
        ("small-cnn", COLOUR, 89_834),
        ("cifar-cnn", COLOUR, 5_852_170),
        ("alexnet-like", COLOUR, 12_815_818),
        ("resnet9", COLOUR, 6_568_640),
        ("mlp", GREY, 784 * 64 + 64 + 640 + 10),
    ],
)
def test_parameter_counts_are_the_papers(name: str, shape: tuple[int, int, int], size: int) -> None:
    net = make(NetSettings(name), shape, 10)
    assert net.size == size
    assert sum(value.numel() for value in net.weights(net.init(0)).values()) == size


@pytest.mark.parametrize(("name", "shape"), [("alexnet-like", GREY), ("alexnet-like", COLOUR), ("resnet9", COLOUR)])
def test_fedmatchs_nets_begin_with_variance_scaling(name: str, shape: tuple[int, int, int]) -> None:
    for tensor in make(NetSettings(name), shape, 10).init(5).values():
        if tensor.dim() == 1:
            assert not tensor.any()
        else:
            scaled = tensor * tensor[0].numel() ** 0.5
            assert float(scaled.std()) == pytest.approx(1, abs=0.06)
            assert 2 < float(scaled.abs().max()) <= 2 / 0.8796


@pytest.mark.parametrize(
    ("shape", "name"),
    [
        (GREY, "mnist-cnn"),
        ((1, 16, 32), "mnist-cnn"),
        ((1, 12, 12), "small-cnn"),
        ((1, 64, 64), "small-cnn"),
        (COLOUR, "small-cnn"),
        ((5, 8, 40), "small-cnn"),
        ((3, 7, 32), "mlp"),
        ((12,), "mlp"),
    ],
)
def test_a_net_that_is_not_named_is_chosen_by_the_samples(shape: tuple[int, ...], name: str) -> None:
    assert choose(shape) == name
    net = make(NetSettings(), shape, 3)
    assert net.name == name
    assert net.evaluate(net.init(0), torch.zeros(2, *shape)).shape == (2, 3)


@pytest.mark.parametrize("norm", ["batch", "group", "none"])
@pytest.mark.parametrize("name", sorted(NETS))
def test_every_net_takes_every_norm_and_size(name: str, norm: Norm) -> None:
    for shape in (GREY, COLOUR):
        net = make(NetSettings(name, norm), shape, 7)
        params, x = net.init(3), images(2, shape)
        assert net.evaluate(params, x).shape == (2, 7)
        one = net.pass_with(KEY)
        logits = one(params, x, torch.ones(2, dtype=torch.bool))
        assert logits.shape == (2, 7)
        assert bool(logits.isfinite().all())
        assert one.features(params, x, ALL).dim() == 2
        moved = one.statistics({"net": params}).get("net", {})
        assert moved.keys() == net.buffers
        assert bool(moved) == (norm == "batch")


def test_a_batch_of_one_row_trains() -> None:
    for name in ("mlp", "mnist-cnn"):
        net = make(NetSettings(name, "batch"), GREY, 10)
        logits = net.pass_with(KEY)(net.init(0), images(1, GREY), torch.tensor([True]))
        assert bool(logits.isfinite().all())


def test_images_that_are_too_small_are_refused_by_name() -> None:
    with pytest.raises(SettingError, match=r"net\.name: mnist-cnn cannot take images of 1x8x8 .* too small"):
        make(NetSettings("mnist-cnn"), (1, 8, 8), 10)


def test_first_parameters_depend_on_the_key_alone() -> None:
    net = make(NetSettings("mnist-cnn"), GREY, 10)
    before = torch.random.get_rng_state()
    first, again, other = net.init(5), net.init(5), net.init(6)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["head.0.weight"], other["head.0.weight"])
    assert not any(value.requires_grad for value in first.values())


def test_masks_differ_between_keys_and_passes_of_a_step() -> None:
    net = make(NetSettings("mnist-cnn"), GREY, 10)
    params, x = net.init(0), images(4, GREY)
    one, same, other = net.pass_with(KEY), net.pass_with(KEY), net.pass_with(KEY + 1)
    first = one(params, x, ALL)
    assert torch.equal(same(params, x, ALL), first)
    assert not torch.equal(one(params, x, ALL), first)
    assert not torch.equal(other(params, x, ALL), first)
    assert torch.equal(net.evaluate(params, x), net.evaluate(params, x))


def test_a_row_does_not_see_its_neighbours_without_batch_norm() -> None:
    net = make(NetSettings("mnist-cnn", "group"), GREY, 10)
    params, x = net.init(0), images(6, GREY)
    assert torch.allclose(net.pass_with(KEY)(params, x, ALL)[:2], net.pass_with(KEY)(params, x[:2], ALL), atol=1e-6)


def normed() -> tuple[Net, Tensor]:
    return make(NetSettings("mlp", "batch"), (1, 4, 4), 3), images(8, (1, 4, 4))


def test_statistics_go_to_the_part_they_belong_to() -> None:
    net, x = normed()
    parts: Parts = {"online": net.init(1), "target": net.init(2), "other": {"x": torch.ones(1)}, "n": torch.ones(())}
    one = net.pass_with(KEY)
    one(parts["target"], x, ALL)
    one.evaluate(parts["online"], x)
    moved = one.statistics(parts)
    assert set(moved) == {"target"}
    assert set(moved["target"]) == net.buffers
    # A dict put together from two parts: the buffers are those of `online`, whatever else it holds.
    one = net.pass_with(KEY)
    buffers = {name: parts["online"][name] for name in net.buffers}
    one({**parts["target"], **buffers}, x, ALL)
    assert set(one.statistics(parts)) == {"online"}
    assert net.pass_with(KEY).statistics(parts) == {}


def test_two_passes_of_a_step_move_the_statistics_twice() -> None:
    net, x = normed()
    params, name = net.init(1), "features.2.running_mean"
    one = net.pass_with(KEY)
    one(params, x, ALL)
    half = one.statistics({"net": params})["net"]
    one(params, x * 2, ALL)
    chained = one.statistics({"net": params})["net"]
    alone = net.pass_with(KEY)
    alone({**params, **half}, x * 2, ALL)
    after = alone.statistics({"net": {**params, **half}})["net"]
    assert torch.equal(chained[name], after[name])
    assert int(chained["features.2.num_batches_tracked"]) == 2
    assert float(params[name].abs().max()) == 0  # what was passed in is as it was


def test_a_branch_moves_only_its_own_statistics() -> None:
    module = nn.Sequential()
    module.features = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(4))
    module.head = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 2))
    net = Net.of(module, (1, 1, 4))
    params, one = net.init(0), net.pass_with(KEY)
    one.features(params, images(5, (1, 1, 4)), ALL)
    assert {name.split(".")[0] for name in one.statistics({"net": params})["net"]} == {"features"}
    backbone, head = net.split(params)
    assert set(backbone) | set(head) == set(params)
    assert all(name.startswith("features.") for name in backbone)
    assert net.feature_width == 4


class Odd(nn.Module):
    """Much that a user's own module may have: tied weights, constants, frozen layers, counters, a skip, None."""

    table: Tensor
    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(9, 9)
        self.tied = nn.Linear(9, 9)
        self.tied.weight = self.first.weight
        self.frozen = nn.Linear(9, 9).requires_grad_(False)
        self.norm = nn.BatchNorm1d(9)
        self.drop = nn.Dropout(0.5, inplace=True)
        self.none = None
        self.last = nn.Linear(9, 4)
        self.register_buffer("table", torch.arange(9.0), persistent=False)
        self.register_buffer("seen", torch.tensor(5))
        self.plain = torch.full((9,), 0.5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x.flatten(1)) + self.table * self.plain
        x = x + F.relu(self.norm(self.tied(self.frozen(x))))
        logits: Tensor = self.last(self.drop(x))
        return logits


def test_any_module_keeps_its_parameters_and_its_logits() -> None:
    module = Odd()
    torch.as_tensor(module.norm.running_mean).add_(0.3)
    net, x = Net.of(module, (1, 3, 3)), images(6, (1, 3, 3))
    params = net.init(99)
    own = module.state_dict()
    assert set(own) - set(params) == {"tied.weight"}
    assert all(torch.equal(params[name], own[name]) for name in params)
    assert params["seen"].dtype == torch.int64
    assert torch.allclose(net.evaluate(params, x), module.eval()(x), atol=1e-6)
    assert net.name == "Odd"
    assert net.size == sum(value.numel() for value in module.parameters())
    assert {name for name in net.buffers if "frozen" in name} == {"frozen.weight", "frozen.bias"}
    assert "seen" in net.buffers
    assert "table" not in params


def test_tied_weights_are_one_and_frozen_ones_rest() -> None:
    module = Odd()
    net, x = Net.of(module, (1, 3, 3)), images(6, (1, 3, 3))
    params = {name: value.requires_grad_(value.is_floating_point()) for name, value in net.init(0).items()}
    net.evaluate(params, x).sum().backward()  # type: ignore[no-untyped-call]
    module.eval()(x).sum().backward()
    assert torch.allclose(
        torch.as_tensor(params["first.weight"].grad), torch.as_tensor(module.first.weight.grad), rtol=1e-4, atol=1e-5
    )
    assert "frozen.weight" not in net.weights(params)
    assert torch.func.vmap(net.evaluate, in_dims=(None, 0))(params, x[None]).shape == (1, 6, 4)


@pytest.mark.parametrize("kind", [lambda: nn.Linear(4, 2), lambda: nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 2))])
def test_the_users_module_itself_is_not_touched(kind: Callable[[], nn.Module]) -> None:
    module = kind()
    before = repr(module)
    net = Net.of(module, (1, 1, 4))
    net.pass_with(KEY)(net.init(0), torch.ones(3, 4), ALL)
    assert repr(module) == before
    assert all(one.device.type == "cpu" and one.requires_grad for one in module.parameters())
