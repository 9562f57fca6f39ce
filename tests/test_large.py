"""The kernels of large nets, for one client at a time: torch's numbers, whatever stands beside a row."""

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from convolutions import AVAILABLE, assert_near, assert_same, compiled, gradients
from semifed import library
from semifed.nets import kernels
from semifed.nets.kernels import batch_norm as norms
from semifed.nets.kernels import convolve
from semifed.nets.kernels.batch_norm import batch_norm
from semifed.nets.kernels.convolve import Conv3x3, conv3x3, conv3x3_pool_relu
from semifed.nets.zoo import NetSettings, make

SIZES = [(10, 32, 64, 32, 32), (3, 64, 32, 16, 16), (1, 32, 32, 1, 1), (2, 96, 64, 7, 5), (4, 32, 128, 2, 9)]


@pytest.fixture(params=["compiled", "off", "no compiler"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """All forms pass the same tests."""
    name = str(request.param)
    if name == "off":
        monkeypatch.setenv(library.SWITCH, "off")
    elif name == "no compiler":
        monkeypatch.setattr(convolve, "_loaded", lambda: None)
        monkeypatch.setattr(norms, "_loaded", lambda: None)
    elif not AVAILABLE:
        pytest.skip(kernels.status())
    return name


def images(rows: int, channels: int, height: int, width: int, seed: int = 0) -> Tensor:
    drawn = torch.randn(rows, channels, height, width, generator=torch.Generator().manual_seed(seed))
    return drawn.contiguous(memory_format=torch.channels_last)


def convolution(rows: int, channels: int, out: int, height: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
    weight = images(out, channels, 3, 3, seed=1) / (9 * channels) ** 0.5
    return images(rows, channels, height, width), weight, torch.randn(out, generator=torch.Generator().manual_seed(2))


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_convolution_is_that_of_torch(size: tuple[int, ...]) -> None:
    tensors = convolution(*size)
    assert_near(gradients(conv3x3, tensors), gradients(convolve._in_torch, tensors))


@pytest.mark.parametrize("size", [*SIZES[:2], (2, 96, 64, 7, 5), (3, 32, 64, 6, 10)], ids=str)
def test_pooled_in_one_pass_has_the_same_bits_and_gradients(
    monkeypatch: pytest.MonkeyPatch, form: str, size: tuple[int, ...]
) -> None:
    def apart(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.relu(F.max_pool2d(conv3x3(x, weight, bias), 2))

    tensors = convolution(*size)
    tensors[0][0, 0, 1, 1] = torch.nan
    with monkeypatch.context() as only:
        if form == "compiled" and not (size[-1] % 2 or size[-2] % 2):
            only.setattr(convolve, "conv3x3", lambda *_: pytest.fail("not by its kernel"))
        pooled = conv3x3_pool_relu(*tensors)
    assert torch.equal(pooled.nan_to_num(-1), apart(*tensors).nan_to_num(-1))
    assert pooled.isnan().any()
    assert not pooled.isnan().all()
    tensors[0][0, 0, 1, 1] = 0
    assert_same(gradients(conv3x3_pool_relu, tensors), gradients(apart, tensors))


@compiled
@settings(max_examples=30, deadline=None)
@given(
    st.integers(1, 5), st.sampled_from([32, 64, 96]), st.sampled_from([32, 64]), st.integers(1, 12), st.integers(1, 9)
)
def test_convolution_of_any_size(rows: int, channels: int, out: int, height: int, width: int) -> None:
    tensors = convolution(rows, channels, out, height, width)
    assert convolve._fit(*tensors)
    assert_near(gradients(conv3x3, tensors), gradients(convolve._in_torch, tensors))


@compiled
def test_rows_of_padding_change_no_bit_of_a_convolution() -> None:
    x, weight, bias = convolution(3, 64, 32, 6, 6)
    longer = torch.cat([x, images(5, 64, 6, 6, seed=9)]).contiguous(memory_format=torch.channels_last)
    grad = torch.zeros(8, 32, 6, 6)
    grad[:3] = torch.randn(3, 32, 6, 6)

    def differentiate(x: Tensor) -> list[Tensor]:
        held = [one.detach().requires_grad_() for one in (x, weight, bias)]
        y = conv3x3(*held)
        of_x, *others = torch.autograd.grad(y, held, grad[: len(x)])
        return [y[:3], of_x[:3], *others]

    assert_same(differentiate(longer), differentiate(x))


@compiled
def test_torch_convolves_what_the_kernel_does_not_take(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight, bias = convolution(2, 32, 32, 4, 4)
    assert convolve._fit(x, weight, bias)
    assert convolve._fit(x, weight, None)
    assert not convolve._fit(x.contiguous(), weight, bias)
    assert not convolve._fit(x.double(), weight.double(), bias.double())
    assert not convolve._fit(x[:, :16], weight[:, :16], bias)
    assert not convolve._fit(x[:0], weight, bias)
    torch.set_num_threads(2)
    assert not convolve._fit(x, weight, bias)
    torch.set_num_threads(1)
    monkeypatch.setattr(library, "load", lambda _: library.Library(None, "compiled"))  # for any processor: slow
    assert convolve._loaded.__wrapped__() is None
    with pytest.raises(RuntimeError):
        conv3x3(x, weight[:, :16], bias)


@compiled
def test_an_order_in_memory_changes_nothing_but_the_way() -> None:
    x, weight, bias = convolution(2, 32, 64, 5, 5)
    assert_same(gradients(conv3x3, (x, weight.contiguous(), bias)), gradients(conv3x3, (x, weight, bias)))


@compiled
@pytest.mark.parametrize("wanted", [(True, False, False), (False, True, False), (False, False, True)], ids=str)
def test_only_what_is_wanted_is_differentiated(wanted: tuple[bool, ...]) -> None:
    tensors = [one.requires_grad_(want) for one, want in zip(convolution(2, 32, 32, 4, 4), wanted, strict=True)]
    chosen = [one for one in tensors if one.requires_grad]
    ours, expected = (torch.autograd.grad(f(*tensors).square().sum(), chosen) for f in (conv3x3, convolve._in_torch))
    assert_near(list(ours), list(expected))


def test_a_layer_is_torchs_with_the_same_names_and_first_draws() -> None:
    torch.manual_seed(3)
    ours = Conv3x3(32, 64)
    torch.manual_seed(3)
    plain = nn.Conv2d(32, 64, 3, padding=1)
    assert ours.state_dict().keys() == plain.state_dict().keys()
    assert_same(list(ours.parameters()), list(plain.parameters()))
    x = images(2, 32, 6, 6)
    assert_near([ours(x).detach()], [plain(x).detach()])


def normalisation(*shape: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(1)
    x = images(*shape) if len(shape) == 4 else torch.randn(shape, generator=draw)
    real = torch.rand(shape[0], generator=draw) < 0.7
    return x * 2 + 1, real, torch.randn(shape[1], generator=draw), torch.randn(shape[1], generator=draw)


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("shape", [(10, 32, 32, 32), (10, 5, 3, 7), (4, 3, 1, 1), (8, 5), (6, 4)], ids=str)
@pytest.mark.parametrize("given_", ["both", "weight", "neither"])
def test_batch_norm_is_that_of_torch(shape: tuple[int, ...], given_: str) -> None:
    x, real, weight, bias = normalisation(*shape)

    def layer(form: Any, x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
        y: Tensor = form(x, real, weight, bias, 0.1)[0]
        return y

    tensors = (x, weight, bias)[: {"both": 3, "weight": 2, "neither": 1}[given_]]
    ours, plain = (gradients(partial(layer, form), tensors) for form in (batch_norm, norms._in_torch))
    assert_near(ours, plain)
    assert_near(list(batch_norm(x, real, None, None, 0.1)[1:]), list(norms._in_torch(x, real, None, None, 0.1)[1:]))


@compiled
def test_rows_of_padding_change_no_bit_of_batch_norm() -> None:
    x, _, weight, bias = normalisation(5, 32, 6, 6)
    padded = torch.cat([x, images(3, 32, 6, 6, seed=8)]).contiguous(memory_format=torch.channels_last)
    real, grad = torch.tensor([True] * 5 + [False] * 3), torch.zeros(8, 32, 6, 6)
    grad[:5] = torch.randn(5, 32, 6, 6)

    def differentiate(x: Tensor) -> list[Tensor]:
        held = [one.detach().requires_grad_() for one in (x, weight, bias)]
        y, mean, variance = batch_norm(held[0], real[: len(x)], held[1], held[2], 1e-5)
        of_x, *others = torch.autograd.grad(y, held, grad[: len(x)])
        return [y[:5], of_x[:5], mean, variance, *others]

    assert_same(differentiate(padded), differentiate(x))


@compiled
def test_a_second_derivative_is_that_of_torch() -> None:
    real = torch.tensor([True, True, False])

    def steepness(layer: Any, *tensors: Tensor) -> list[Tensor]:
        held = [one.detach().double().float().requires_grad_() for one in tensors]
        (of_x,) = torch.autograd.grad(layer(*held).sigmoid().sum(), held[:1], create_graph=True)
        return list(torch.autograd.grad(of_x.square().sum(), held))

    x, weight, bias = convolution(3, 32, 32, 4, 4)
    assert_near(steepness(conv3x3, x, weight, bias), steepness(convolve._in_torch, x, weight, bias))
    affine = x, bias + 1, bias
    ours = steepness(lambda x, weight, bias: batch_norm(x, real, weight, bias, 0.1)[0], *affine)
    plain = steepness(lambda x, weight, bias: norms._in_torch(x, real, weight, bias, 0.1)[0], *affine)
    assert_near(ours, plain)


@compiled
def test_the_large_net_trains_the_same_without_kernels() -> None:
    net = make(NetSettings(name="cifar-cnn"), (3, 16, 16), 10)
    params = {
        name: one.contiguous(memory_format=torch.channels_last) if one.dim() == 4 else one
        for name, one in net.init(1).items()
    }
    x, real = images(4, 3, 16, 16), torch.tensor([True, True, True, False])

    def differentiate() -> list[Tensor]:
        held = {name: params[name].detach().requires_grad_() for name in net.weights(params)}
        one = net.pass_with(torch.tensor(5))
        y = one({**params, **held}, x, real)[:3]
        moved = one.statistics({"net": params})["net"]
        return [y.detach(), *moved.values(), *torch.autograd.grad(y.log_softmax(1)[:, 0].sum(), list(held.values()))]

    ours = differentiate()
    with library.off():
        assert_near(ours, differentiate())
