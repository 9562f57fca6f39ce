"""The kernels against torch's own operations, and the layers made of them."""

import ctypes
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call, vmap

from convolutions import AVAILABLE, CASES, FIRST, SECOND, Case, assert_near, assert_same, compiled, gradients
from semifed import library
from semifed.nets import kernels
from semifed.nets.kernels import operations
from semifed.nets.kernels.launch import launch
from semifed.nets.net import Net
from semifed.nets.zoo import NetSettings, make


@pytest.fixture(params=["compiled", "off"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both forms pass the same tests."""
    name = str(request.param)
    if name == "off":
        monkeypatch.setenv(library.SWITCH, "off")
    elif not AVAILABLE:
        pytest.skip(kernels.status())
    return name


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("case", CASES)
def test_convolution_is_that_of_torch(case: Case) -> None:
    tensors = case.tensors()
    assert_near(gradients(case.layer, tensors), gradients(case.plain, tensors))


@compiled
@settings(max_examples=80, deadline=None)
@given(st.data())
def test_convolution_of_any_size(data: st.DataObject) -> None:
    kernel, padding = data.draw(st.sampled_from([(3, 0), (3, 1), (5, 0), (5, 2), (5, 4)]))
    least = max(kernel + 1 - 2 * padding, 1)
    sides = [data.draw(st.integers(least, least + 20)) for _ in range(2)]
    rows, channels, out = (data.draw(st.integers(*bounds)) for bounds in ((0, 4), (1, 12), (1, 15)))
    case = Case(rows, channels, out, sides[0], sides[1], kernel, padding)
    tensors = case.tensors()
    assert_near(gradients(case.layer, tensors), gradients(case.plain, tensors))


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize(("rows", "width", "out"), [(10, 320, 50), (10, 50, 10), (7, 13, 5), (1, 1, 1), (0, 9, 3)])
def test_linear_is_that_of_torch(rows: int, width: int, out: int) -> None:
    tensors = torch.randn(rows, width), torch.randn(out, width), torch.randn(out)
    assert_near(gradients(kernels.linear, tensors), gradients(F.linear, tensors))


@pytest.mark.usefixtures("form")
def test_the_first_of_equals_wins_and_relu_is_flat_at_zero() -> None:
    even = torch.ones(2, 1, 8, 8), torch.ones(3, 1, 3, 3), torch.zeros(3)
    assert_near(gradients(kernels.conv_pool_relu, even), gradients(FIRST.plain, even))
    flat = torch.ones(2, 1, 8, 8), torch.zeros(3, 1, 3, 3), torch.zeros(3)
    assert not any(tensor.any() for tensor in gradients(kernels.conv_pool_relu, flat))


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("place", [(0, 0, 0, 0), (2, 0, 13, 14), (1, 0, 27, 27), (1, 0, 11, 12)])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_no_number_is_not_hidden(place: tuple[int, ...], value: float) -> None:
    x, weight, bias = FIRST.tensors()
    x[place] = value
    ours, expected = FIRST.layer(x, weight, bias), FIRST.plain(x, weight, bias)
    assert torch.equal(ours.isnan(), expected.isnan())
    assert torch.equal(ours.isinf(), expected.isinf())


@compiled
def test_the_gradient_of_the_images_is_not_computed_unless_it_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted: list[bool] = []
    original = operations.Convolution.backward

    def backward(self: Any, grad: Tensor, x: Tensor, weight: Tensor, known: Tensor, wants_x: bool) -> Any:
        wanted.append(wants_x)
        return original(self, grad, x, weight, known, wants_x)

    monkeypatch.setattr(operations.Convolution, "backward", backward)
    x, weight, bias = FIRST.tensors(clients=2)
    held = weight.requires_grad_(), bias.requires_grad_()
    torch.autograd.grad(vmap(FIRST.layer)(x, *held).sum(), held)
    torch.autograd.grad(vmap(FIRST.layer)(x.requires_grad_(), *held).sum(), (x, *held))
    assert wanted == [False, True]
    with torch.no_grad():
        assert FIRST.layer(x[0], weight[0], bias[0]).grad_fn is None


@compiled
def test_a_second_derivative_is_refused() -> None:
    x, weight, bias = FIRST.tensors()
    weight.requires_grad_()
    first = torch.autograd.grad(FIRST.layer(x, weight, bias).square().sum(), weight, create_graph=True)[0]
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(first.sum(), weight)


def test_what_a_kernel_cannot_take_goes_to_torch() -> None:
    x, weight, bias = (tensor.double() for tensor in SECOND.tensors())
    assert torch.equal(SECOND.layer(x, weight, bias), SECOND.plain(x, weight, bias))
    large = Case(2, 1, 2, 20, 20, 9, 0)
    assert torch.equal(large.layer(*large.tensors()), large.plain(*large.tensors()))
    meta = [tensor.to("meta") for tensor in SECOND.tensors()]
    assert SECOND.layer(meta[0], meta[1], meta[2]).shape == (4, 20, 4, 4)
    assert kernels.linear(torch.ones(2, 3, 4), torch.ones(5, 4), torch.ones(5)).shape == (2, 3, 5)


@pytest.mark.parametrize("broken", [(4, 9, 12, 12), (4, 10, 4, 12), (4, 10, 5, 5)])
def test_shapes_that_do_not_fit_are_refused_by_torch(broken: tuple[int, ...]) -> None:
    _, weight, bias = SECOND.tensors()
    with pytest.raises(RuntimeError):
        kernels.conv_pool_relu(torch.ones(broken), weight, bias)


@compiled
def test_nothing_is_read_or_written_beside_the_tensors() -> None:
    """Inputs lie among not-a-numbers, outputs among sevens."""

    def among(value: float, tensor: Tensor) -> tuple[Tensor, Tensor]:
        room = torch.full((tensor.numel() + 128,), value).to(tensor.dtype)
        room[64:-64] = tensor.flatten()
        return room, room[64:-64].view(tensor.shape)

    for case in CASES:
        x, weight, bias = (among(float("nan"), tensor)[1] for tensor in case.tensors())
        y = case.plain(x, weight, bias)
        shape = (ctypes.c_int32 * 7)(1, *case[:5], case.padding)
        code = operations.convolution(case.kernel, case.padding)
        assert code is not None
        rooms = [among(7, torch.zeros(one.shape)) for one in (y, x, weight, bias)]
        codes, winner = among(7, torch.zeros(y.shape, dtype=torch.uint8))
        launch(code._forward, shape, x, weight, bias, rooms[0][1], winner)
        launch(code._backward, shape, torch.ones_like(y), x, weight, winner, *(own for _, own in rooms[1:]))
        assert all(room[:64].eq(7).all() and room[-64:].eq(7).all() for room in [codes, *(room for room, _ in rooms)])
        assert not any(own.isnan().any() for _, own in rooms)


def test_layers_draw_their_first_parameters_as_torch_does() -> None:
    builds: list[tuple[Callable[[], nn.Module], Callable[[], nn.Module]]] = [
        (lambda: kernels.ConvPoolRelu(3, 8, 5, padding=2), lambda: nn.Conv2d(3, 8, 5, padding=2)),
        (lambda: kernels.Linear(7, 4), lambda: nn.Linear(7, 4)),
    ]
    for ours, theirs in builds:
        torch.manual_seed(3)
        own = dict(ours().named_parameters())
        torch.manual_seed(3)
        expected = dict(theirs().named_parameters())
        assert list(own) == list(expected) == ["weight", "bias"]
        assert_same(list(own.values()), list(expected.values()))


@pytest.mark.usefixtures("form")
def test_the_mnist_net_is_that_of_the_paper() -> None:
    """Dropout of whole channels after pooling gives what it gives before, in training too."""
    net = make(NetSettings("mnist-cnn"), (1, 28, 28), 10)
    paper = Net.of(
        nn.Sequential(
            nn.Conv2d(1, 10, 5), nn.MaxPool2d(2), nn.ReLU(),
            nn.Conv2d(10, 20, 5), nn.Dropout2d(0.5), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(),
            nn.Linear(320, 50), nn.ReLU(), nn.Dropout(0.5), nn.Linear(50, 10),
        ),
        (1, 28, 28),
    )  # fmt: skip
    assert net.size == paper.size == 21_840
    params = net.init(5)
    assert [name.split(".")[0] for name in params] == ["features"] * 4 + ["head"] * 4
    theirs = dict(zip(paper.init(0), params.values(), strict=True))
    x, real, key = torch.randn(6, 1, 28, 28), torch.ones(6, dtype=torch.bool), torch.tensor(11)
    assert_near([net.evaluate(params, x)], [paper.evaluate(theirs, x)])
    assert_near([net.pass_with(key)(params, x, real)], [paper.pass_with(key)(theirs, x, real)])


def test_layers_work_in_a_module_that_is_called_with_other_parameters() -> None:
    module = nn.Sequential(kernels.ConvPoolRelu(1, 2, 5), nn.Flatten(), kernels.Linear(2 * 12 * 12, 3))
    params = {name: torch.zeros_like(value) for name, value in module.named_parameters()}
    assert torch.equal(functional_call(module, params, (torch.ones(4, 1, 28, 28),)), torch.zeros(4, 3))
    assert repr(module[0]) == "ConvPoolRelu(1, 2, kernel=5, padding=0)"
