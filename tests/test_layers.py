"""Dropout and batch normalisation without side effects: torch's numbers, and nothing left behind."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from semifed import keys
from semifed.nets.layers import BatchNorm, KeyedDropout, make_pure
from semifed.nets.net import Net
from semifed.params import Params, stack

KEY = torch.tensor(keys.key("layers"))
ALL = torch.tensor(True)


def noise(*shape: int, key: int = 0) -> Tensor:
    return keys.uniform(torch.tensor(key), torch.Size(shape).numel()).reshape(shape) * 4 - 1


def dropout(probability: float, channels: bool = False) -> KeyedDropout:
    layer = KeyedDropout(probability, channels)
    layer.key = KEY
    return layer


def test_dropout_drops_at_its_rate_and_scales_the_rest() -> None:
    for probability in (0.1, 0.5, 0.9):
        out = dropout(probability)(torch.ones(200, 500))
        assert abs(float((out == 0).float().mean()) - probability) < 0.005
        assert torch.allclose(out[out != 0], torch.tensor(1 / (1 - probability)))
    assert torch.equal(dropout(0.0)(torch.ones(3, 3)), torch.ones(3, 3))
    assert torch.equal(dropout(1.0)(torch.ones(3, 3)), torch.zeros(3, 3))
    assert torch.equal(dropout(0.5).eval()(torch.ones(3, 3)), torch.ones(3, 3))


def test_dropout_of_channels_drops_them_whole() -> None:
    out = dropout(0.3, channels=True)(torch.ones(100, 50, 4, 5))
    per_channel = out.flatten(2)
    assert bool((per_channel == per_channel[:, :, :1]).all())
    assert abs(float((per_channel[:, :, 0] == 0).float().mean()) - 0.3) < 0.02


def test_a_row_is_dropped_the_same_whatever_stands_behind_it() -> None:
    for channels in (False, True):
        long = dropout(0.5, channels)(torch.ones(20, 8, 3, 3))
        assert torch.equal(dropout(0.5, channels)(torch.ones(7, 8, 3, 3)), long[:7])
        assert not torch.equal(long[0], long[1])


def test_a_layer_used_twice_in_a_pass_drops_anew() -> None:
    layer = dropout(0.5)
    first, second = layer(torch.ones(50, 50)), layer(torch.ones(50, 50))
    assert abs(float(((first > 0) & (second > 0)).float().mean()) - 0.25) < 0.05
    layer.forget()
    assert torch.equal(layer(torch.ones(50, 50)), first)


def test_dropout_under_vmap_is_that_of_every_key() -> None:
    own, x = keys.fold(KEY, torch.arange(3)), torch.ones(3, 6, 10)
    net = Net(lambda: nn.Sequential(nn.Flatten(), nn.Dropout(0.4)), (1, 1, 10))
    mapped = torch.func.vmap(lambda key, rows: net.pass_with(key)({}, rows, ALL))(own, x)
    single = torch.stack([net.pass_with(key)({}, rows, ALL) for key, rows in zip(own, x, strict=True)])
    assert torch.equal(mapped, single)
    assert not torch.equal(single[0], single[1])


NORMS: dict[str, tuple[Callable[[], nn.modules.batchnorm._BatchNorm], tuple[int, ...]]] = {
    "1d": (lambda: nn.BatchNorm1d(5), (8, 5)),
    "1d with length": (lambda: nn.BatchNorm1d(5), (8, 5, 7)),
    "2d": (lambda: nn.BatchNorm2d(5), (8, 5, 4, 3)),
    "momentum": (lambda: nn.BatchNorm2d(5, momentum=0.3, eps=0.01), (8, 5, 4, 3)),
    "mean of all": (lambda: nn.BatchNorm2d(5, momentum=None), (8, 5, 4, 3)),
    "no affine": (lambda: nn.BatchNorm2d(5, affine=False), (8, 5, 4, 3)),
    "no tracking": (lambda: nn.BatchNorm2d(5, track_running_stats=False), (8, 5, 4, 3)),
}


def prepared(kind: str) -> tuple[nn.modules.batchnorm._BatchNorm, Net, Params, tuple[int, ...]]:
    build, shape = NORMS[kind]
    layer = build()
    if layer.affine:
        with torch.no_grad():
            layer.weight.copy_(noise(5, key=1))
            layer.bias.copy_(noise(5, key=2))
    net = Net.of(nn.Sequential(layer), (1, 1, 1))
    return layer, net, net.init(0), shape


@pytest.mark.parametrize("kind", NORMS)
def test_batch_norm_is_torchs_in_training_and_after(kind: str) -> None:
    layer, net, params, shape = prepared(kind)
    for step in range(4):
        x = noise(*shape, key=step)
        step_pass = net.pass_with(KEY)
        ours = step_pass(params, x, torch.ones(shape[0], dtype=torch.bool))
        assert torch.allclose(ours, layer.train()(x), atol=1e-5)
        params |= step_pass.statistics({"net": params}).get("net", {})
        for name, buffer in layer.named_buffers():
            assert params[f"0.{name}"].dtype == buffer.dtype
            assert torch.allclose(params[f"0.{name}"], buffer, atol=1e-6)
    x = noise(*shape, key=9)
    assert torch.allclose(net.evaluate(params, x), layer.eval()(x), atol=1e-5)


@pytest.mark.parametrize("kind", NORMS)
def test_rows_that_are_not_real_count_for_nothing(kind: str) -> None:
    layer, net, params, shape = prepared(kind)
    x, real = noise(*shape), torch.tensor([True, False, True, True, False, True, True, False])
    step_pass = net.pass_with(KEY)
    ours = step_pass(params, x.where(real.reshape(-1, *[1] * (x.dim() - 1)), torch.tensor(1e6)), real)
    assert torch.allclose(ours[real], layer.train()(x[real]), atol=1e-5)
    moved = step_pass.statistics({"net": params}).get("net", {})
    for name, buffer in layer.named_buffers():
        assert torch.allclose(moved[f"0.{name}"], buffer, atol=1e-6)


def test_gradients_are_torchs_with_padding_left_out() -> None:
    layer, net, params, shape = prepared("2d")
    real = torch.tensor([True] * 5 + [False] * 3)
    x = noise(*shape).requires_grad_()
    weight = params["0.weight"].requires_grad_()
    ours = net.pass_with(KEY)(params, x, real)
    (ours[real] ** 3).sum().backward()  # type: ignore[no-untyped-call]
    alone = x.detach()[:5].requires_grad_()
    (layer.train()(alone) ** 3).sum().backward()
    assert x.grad is not None
    assert alone.grad is not None
    assert torch.allclose(x.grad[:5], alone.grad, atol=1e-4)
    assert bool((x.grad[5:] == 0).all())
    assert torch.allclose(torch.as_tensor(weight.grad), torch.as_tensor(layer.weight.grad), rtol=1e-4, atol=1e-4)


def test_a_batch_of_one_value_or_none_moves_no_variance_and_stays_finite() -> None:
    _, net, params, _ = prepared("1d")
    for real, batches in ((torch.tensor([True, False]), 1), (torch.tensor([False, False]), 0)):
        step_pass = net.pass_with(KEY)
        out = step_pass(params, noise(2, 5), real)
        moved = step_pass.statistics({"net": params})["net"]
        assert bool(out.isfinite().all())
        assert torch.equal(moved["0.running_var"], params["0.running_var"])
        assert int(moved["0.num_batches_tracked"]) == batches
        expected = noise(2, 5)[0] * 0.1 if batches else params["0.running_mean"]
        assert torch.allclose(moved["0.running_mean"], expected)
        assert torch.allclose(out[0], params["0.bias"], atol=1e-3) or not batches
    assert float(net.pass_with(KEY)(params, noise(2, 5), torch.zeros(2, dtype=torch.bool)).abs().max()) < 20
    assert net.pass_with(KEY)(params, torch.zeros(0, 5), torch.zeros(0, dtype=torch.bool)).shape == (0, 5)


def test_batch_norm_is_the_same_under_vmap() -> None:
    _, net, params, shape = prepared("2d")
    x, real = noise(3, *shape), torch.rand(3, shape[0], generator=torch.Generator().manual_seed(1)) < 0.7

    def once(params: Params, x: Tensor, real: Tensor) -> tuple[Tensor, Params]:
        step_pass = net.pass_with(KEY)
        out = step_pass(params, x, real)
        return out, step_pass.statistics({"net": params})["net"]

    out, moved = torch.func.vmap(once)(stack([params] * 3), x, real)
    for client in range(3):
        own, own_moved = once(params, x[client], real[client])
        assert torch.allclose(out[client], own, atol=1e-5)
        for name, value in own_moved.items():
            assert torch.allclose(moved[name][client].to(value), value, atol=1e-6)
            assert moved[name].dtype == value.dtype


def test_a_shared_norm_moves_twice_in_a_pass() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(5)

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(self.norm(x) * 3)  # type: ignore[no-any-return]

    module = Twice()
    net = Net.of(module, (1, 1, 5))
    params = net.init(0)
    step_pass = net.pass_with(KEY)
    ours = step_pass(params, noise(8, 5), ALL)
    assert torch.allclose(ours, module.train()(noise(8, 5)), atol=1e-5)
    moved = step_pass.statistics({"net": params})["net"]
    for name, buffer in module.named_buffers():
        assert torch.allclose(moved[name], buffer, atol=1e-6)


def test_layers_are_replaced_wherever_they_stand_and_stay_shared() -> None:
    shared = nn.Dropout(0.5)
    norm = nn.BatchNorm1d(4)
    module = nn.Sequential(nn.Sequential(shared, norm), nn.ModuleList([shared, nn.Dropout2d(0.2)]), norm)
    module.extra = shared
    pure = make_pure(copy.deepcopy(module))
    kinds = [type(layer) for layer in pure.modules()]
    assert kinds.count(KeyedDropout) == 2
    assert kinds.count(BatchNorm) == 1
    assert pure.extra is pure[0][0] is pure[1][0]  # type: ignore[index]
    assert not any(isinstance(layer, nn.Dropout | nn.BatchNorm1d) for layer in pure.modules())
    assert isinstance(make_pure(nn.Dropout(0.3)), KeyedDropout)
    assert isinstance(make_pure(nn.AlphaDropout(0.3)), nn.AlphaDropout)
