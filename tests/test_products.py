"""Linear layers of large nets, and images of one channel: torch's numbers, by a faster way."""

from typing import Literal

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from convolutions import assert_near, assert_same, compiled, gradients
from semifed import library
from semifed.methods.losses import sq_dist
from semifed.nets import kernels
from semifed.nets.kernels import VECTOR, OrderedConvPoolRelu, distances, products
from semifed.nets.kernels.products import WideLinear, wide_linear
from semifed.nets.net import PIECE
from semifed.nets.zoo import NetSettings, make
from semifed.params import Params, lay_out

by_one_dnn = pytest.mark.skipif(products.found() is None, reason="this processor has no need of it")


def layer(rows: int, width: int = 48, out: int = 33) -> tuple[Tensor, Tensor, Tensor]:
    drawn = torch.Generator().manual_seed(rows)
    x, weight, bias = (torch.randn(*size, generator=drawn) for size in ((rows, width), (out, width), (out,)))
    return x, weight / width**0.5, bias


@pytest.mark.parametrize("rows", [1, 7, 50])
def test_a_product_is_that_of_torch(rows: int) -> None:
    tensors = layer(rows)
    assert_near(gradients(wide_linear, tensors), gradients(F.linear, tensors))


def test_a_product_repeats_to_the_last_bit() -> None:
    tensors = layer(50)
    assert_same(gradients(wide_linear, tensors), gradients(wide_linear, tensors))


@by_one_dnn
def test_torch_multiplies_what_is_not_for_one_dnn(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight, bias = layer(4)
    x.requires_grad_()
    assert "_Product" in type(wide_linear(x, weight, bias).grad_fn).__name__
    assert "_Product" not in type(wide_linear(x.double(), weight.double(), bias.double()).grad_fn).__name__
    assert "_Product" not in type(wide_linear(x[None], weight, bias).grad_fn).__name__
    assert wide_linear(x[:0], weight, bias).shape == (0, 33)
    stacked = torch.func.vmap(wide_linear)(x[None], weight[None], bias[None])
    assert_near([stacked[0].detach()], [F.linear(x, weight, bias).detach()])
    monkeypatch.setenv(library.SWITCH, "off")
    assert "_Product" not in type(wide_linear(x, weight, bias).grad_fn).__name__


@pytest.mark.parametrize(("maker", "chosen"), [("GenuineIntel", False), ("AuthenticAMD", True), ("", False)])
def test_the_maker_of_the_processor_decides(monkeypatch: pytest.MonkeyPatch, maker: str, chosen: bool) -> None:
    monkeypatch.setattr(products, "_maker", lambda: f"vendor_id : {maker}")
    assert products.found.__wrapped__() is None or chosen
    if products.found() is not None:
        assert (products.found.__wrapped__() is not None) == chosen


def test_a_product_has_a_second_derivative() -> None:
    def steepness(function: object, x: Tensor, weight: Tensor, bias: Tensor) -> list[Tensor]:
        held = [one.detach().requires_grad_() for one in (x, weight, bias)]
        first = torch.autograd.grad(function(*held).square().sum(), held, create_graph=True)  # type: ignore[operator]
        return list(torch.autograd.grad(sum((one.square().sum() for one in first), torch.zeros(())), held))

    assert_near(steepness(wide_linear, *layer(5)), steepness(F.linear, *layer(5)))


def test_a_layer_is_torchs_with_the_same_names_and_first_draws() -> None:
    torch.manual_seed(3)
    ours = WideLinear(8, 5)
    torch.manual_seed(3)
    plain = nn.Linear(8, 5)
    assert ours.state_dict().keys() == plain.state_dict().keys()
    assert_same(list(ours.parameters()), list(plain.parameters()))


def test_what_comes_of_images_of_one_channel_lies_in_their_order() -> None:
    images, weight = torch.randn(3, 1, 6, 5), torch.randn(8, 1, 3, 3)
    last, first = lay_out(images, torch.channels_last), lay_out(images, torch.contiguous_format)
    assert torch.equal(last, images)
    assert F.conv2d(F.pad(last, (1, 1, 1, 1)), weight).is_contiguous(memory_format=torch.channels_last)
    assert F.conv2d(F.pad(first, (1, 1, 1, 1)), weight).is_contiguous()
    sliced = torch.randn(4, 3, 6, 5)[:, 1:2]
    assert torch.equal(lay_out(sliced, torch.channels_last), sliced)


def test_a_large_net_takes_many_images_in_pieces() -> None:
    net = make(NetSettings("alexnet-like"), (1, 8, 8), 10)
    params, images = net.init(0), torch.randn(2 * PIECE + 3, 1, 8, 8)
    seen = list[int]()
    call = net.call

    def watched(training: bool, params: Params, x: Tensor, extra: Params, branch: str = "") -> Tensor:
        seen.append(len(x))
        return call(training, params, x, extra, branch)

    net.call = watched  # type: ignore[method-assign]
    logits = net.evaluate(params, images)
    assert seen == [PIECE, PIECE, 3, len(images)]
    assert_near([logits], [call(False, params, images, {})])
    assert net.evaluate(params, images[:0]).shape == (0, 10)


@pytest.mark.parametrize("norm", ["none", "batch"])
@pytest.mark.parametrize("name", ["alexnet-like", "cifar-cnn", "resnet9", "mlp"])
def test_pieces_change_no_number(name: str, norm: Literal["none", "batch"]) -> None:
    shape = (3, 64, 64) if name == "mlp" else (3, 8, 8)
    net = make(NetSettings(name, norm=norm), shape, 10)
    params, images = net.init(0), torch.randn(PIECE + 3, *shape)
    assert_near([net.evaluate(params, images)], [net.call(False, params, images, {})])


def test_pooling_before_relu_changes_no_bit_of_alexnet() -> None:
    net = make(NetSettings("alexnet-like"), (1, 16, 16), 10)
    x = torch.randn(4, 64, 8, 8, requires_grad=True)
    layers = net.module(net.init(0)).get_submodule("features").children()
    swapped, plain = F.relu(F.max_pool2d(x, 2)), F.max_pool2d(F.relu(x), 2)
    assert [type(one).__name__ for one in layers][2:4] == ["Identity", "Identity"]
    grad = torch.randn_like(plain)
    assert_same([swapped, *torch.autograd.grad(swapped, x, grad)], [plain, *torch.autograd.grad(plain, x, grad)])


@compiled
def test_pooled_images_lie_in_the_order_of_the_images() -> None:
    layer, images = OrderedConvPoolRelu(1, 8, 3), torch.randn(2, 1, 8, 8)
    last, first = (layer(lay_out(images, order)) for order in (torch.channels_last, torch.contiguous_format))
    assert last.is_contiguous(memory_format=torch.channels_last)
    assert first.is_contiguous()
    assert torch.equal(last, first)


@compiled
@pytest.mark.parametrize("out", [16, 64, 80, 24])
@pytest.mark.parametrize("size", [(1, 28, 28, 4), (3, 9, 12, 3)], ids=str)
def test_pooled_images_without_a_gradient_have_the_same_bits(
    monkeypatch: pytest.MonkeyPatch, size: tuple[int, ...], out: int
) -> None:
    channels, height, width, kernel = size
    layer = OrderedConvPoolRelu(channels, out, kernel)
    images = lay_out(torch.randn(5, channels, height, width), torch.channels_last)
    images[1, 0, 3, 3] = torch.nan
    with torch.no_grad(), monkeypatch.context() as only:
        if out % VECTOR == 0:
            only.setattr(kernels, "conv_pool_relu", lambda *_: pytest.fail("not by its kernel"))
        found = layer(images)
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert found[1].isnan().any()
    assert not found[1].isnan().all()
    assert torch.equal(found.nan_to_num(-1), layer(images).nan_to_num(-1))


@pytest.mark.parametrize("shape", [(1, 28, 28), (1, 9, 13), (3, 14, 11)], ids=str)
@pytest.mark.parametrize("norm", ["none", "batch"])
def test_alexnet_computes_what_its_paper_says(shape: tuple[int, int, int], norm: Literal["none", "batch"]) -> None:
    net = make(NetSettings("alexnet-like", norm), shape, 10)
    params, x = net.init(0), torch.randn(3, *shape)
    logits = net.pass_with(torch.tensor(0))(params, x, torch.ones(3, dtype=torch.bool))
    weights = iter(value for name, value in params.items() if value.is_floating_point() and "running" not in name)
    for kernel in (4, 3, 2):
        before, after = (kernel - 1) // 2, kernel // 2
        x = F.conv2d(F.pad(x, (before, after, before, after)), next(weights), next(weights))
        if norm == "batch":
            x = F.batch_norm(x, None, None, next(weights), next(weights), training=True)
        x = F.max_pool2d(F.relu(x), 2)
    x = x.flatten(1)
    for last in (False, False, True):
        x = F.linear(x, next(weights), next(weights))
        x = x if last else F.relu(x)
    assert_near([logits], [x])


def test_batches_of_a_large_net_go_together_where_no_row_meets_another() -> None:
    for name, shape, passes in (("alexnet-like", (1, 8, 8), 1), ("cifar-cnn", (3, 8, 8), 2), ("mlp", (1, 8, 8), 2)):
        net = make(NetSettings(name), shape, 10)
        batches = [(torch.randn(rows, *shape), torch.arange(rows) < 2) for rows in (3, 5)]
        together, apart = net.pass_with(torch.tensor(1)), net.pass_with(torch.tensor(1))
        params = net.init(0)
        made, expected = together.each(params, *batches), [apart(params, *batch) for batch in batches]
        assert torch.equal(together.draw(1), apart.draw(1))
        (assert_near if passes == 1 else assert_same)(made, expected)


def test_distance_has_the_same_bits_alone_and_as_a_sum_of_squares() -> None:
    one, two = torch.randn(300, 70, requires_grad=True), torch.randn(300, 70)
    short, long = 0.3 * sq_dist({"a": one}, {"a": two}), 0.3 * ((one - two) ** 2).sum()
    assert_same([short, *torch.autograd.grad(short, one)], [long, *torch.autograd.grad(long, one)])


@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("switch", ["on", "off"])
def test_distance_of_large_tensors_is_that_of_torch(
    monkeypatch: pytest.MonkeyPatch, switch: str, order: torch.memory_format
) -> None:
    monkeypatch.setenv(library.SWITCH, switch)
    one, two = (torch.randn(257, 130, 3, 3).contiguous(memory_format=order).requires_grad_() for _ in range(2))
    ours, theirs = 0.3 * distances.squared(one, two), 0.3 * F.mse_loss(one, two, reduction="sum")
    exact = 0.3 * (one.double() - two.double()).square().sum().item()
    assert abs(ours.item() - exact) <= 1e-6 * exact
    assert_same(list(torch.autograd.grad(ours, (one, two))), list(torch.autograd.grad(theirs, (one, two))))


@compiled
def test_distance_leaves_to_torch_what_its_kernel_cannot_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distances, "_loaded", lambda: pytest.fail("a kernel was asked for"))
    large = torch.randn(1024, 512)
    others = (large.t().contiguous().t(), large.double(), torch.randn(1024, 1024)[:, ::2])
    for one, two in ((large, others[0]), (others[1], others[1] + 1), (others[2], others[2] + 1), (large[0], large[1])):
        assert torch.equal(distances.squared(one, two), F.mse_loss(one, two, reduction="sum"))


def test_distance_can_be_differentiated_twice() -> None:
    one, two = torch.randn(600, 600, requires_grad=True), torch.randn(600, 600)
    (pull,) = torch.autograd.grad(distances.squared(one, two), one, create_graph=True)
    (again,) = torch.autograd.grad(pull.sum(), one)
    assert torch.equal(again, torch.full_like(one, 2))
