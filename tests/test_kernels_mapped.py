"""The kernels stacked over clients: a client's numbers are the same in any company, to the last bit."""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap

from convolutions import CASES, FIRST, SECOND, Case, assert_near, assert_same, compiled, gradients
from semifed import keys
from semifed.engine import mapping
from semifed.engine.assemble import prepare
from semifed.engine.local import Task
from semifed.experiment import Experiment
from semifed.nets import kernels
from semifed.nets.kernels import autograd, dropout_scales
from semifed.params import leaves


@compiled
@pytest.mark.parametrize("short_cut", [True, False])
@pytest.mark.parametrize("case", [FIRST, SECOND, CASES[3]])
def test_a_client_computes_the_same_alone_and_stacked(
    case: Case, short_cut: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(autograd, "SHORT_CUT", short_cut)
    tensors = case.tensors(clients=5)
    y, *others = gradients(vmap(case.layer), tensors)
    coming = torch.randn(y.shape, generator=torch.Generator().manual_seed(7))
    for client in range(5):
        own = tuple(tensor[client].clone().requires_grad_() for tensor in tensors)
        alone = case.layer(*own)
        assert torch.equal(alone, y[client])
        mine = torch.autograd.grad(alone, own, coming[client])
        assert_same(list(mine), [other[client] for other in others])


@compiled
def test_a_linear_layer_computes_the_same_alone_stacked_and_padded() -> None:
    x, weight, bias = torch.randn(4, 11, 50), torch.randn(4, 10, 50), torch.randn(4, 10)
    coming = torch.randn(4, 11, 10)
    coming[2, 6:] = 0  # the third client's last rows are padding
    held = [tensor.clone().requires_grad_() for tensor in (x, weight, bias)]
    y = vmap(kernels.linear)(*held)
    stacked = torch.autograd.grad(y, held, coming)
    own = [tensor[2].clone().requires_grad_() for tensor in (x[:, :6], weight, bias)]
    alone = kernels.linear(own[0], own[1], own[2])
    assert torch.equal(alone, y[2, :6])
    mine = torch.autograd.grad(alone, own, coming[2, :6])
    assert_same(list(mine), [stacked[0][2, :6], stacked[1][2], stacked[2][2]])


@compiled
def test_rows_of_padding_change_no_bit_of_a_convolution() -> None:
    x, weight, bias = SECOND._replace(rows=30).tensors()
    held = weight.requires_grad_(), bias.requires_grad_()
    y = SECOND.layer(x, *held)
    coming = torch.randn(y.shape)
    coming[17:] = 0
    short = SECOND.layer(x[:17], *held)
    assert torch.equal(short, y[:17])
    assert_same(
        list(torch.autograd.grad(y, held, coming)), list(torch.autograd.grad(short, held, coming[:17]))
    )  # fmt: skip


@compiled
@pytest.mark.parametrize("axes", [(0, None, 0), (None, 0, 0), (0, 0, None), (1, 0, 0), (0, 2, 1)])
@pytest.mark.parametrize("short_cut", [True, False])
def test_any_of_the_inputs_may_be_mapped_along_any_axis(
    axes: tuple[int | None, ...], short_cut: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(autograd, "SHORT_CUT", short_cut)
    stacked, single = SECOND.tensors(clients=3), SECOND.tensors(seed=1)
    inputs = tuple(
        one if axis is None else many.movedim(0, axis) for many, one, axis in zip(stacked, single, axes, strict=True)
    )
    ours = gradients(vmap(SECOND.layer, in_dims=axes), inputs)
    assert_near(ours, gradients(vmap(SECOND.plain, in_dims=axes), inputs))


@compiled
def test_inputs_may_be_expanded_transposed_or_sliced() -> None:
    x, weight, bias = SECOND.tensors()
    odd = [
        (x.transpose(2, 3), weight, bias),
        (torch.randn(4, 30, 14, 20)[::2, 1::3, 2:, 3:15], weight.flip(0)[:, :, 1:4, 2:], bias.flip(0)),
        (x[:1].expand(4, -1, -1, -1), weight[:1].expand(20, -1, -1, -1), bias[:1].expand(20)),
    ]
    for inputs in odd:
        own = tuple(tensor.contiguous() for tensor in inputs)
        held = [tensor.requires_grad_() for tensor in inputs]
        y = SECOND.layer(*held)
        expected = gradients(SECOND.layer, own)
        coming = torch.randn(y.shape, generator=torch.Generator().manual_seed(7))
        assert_near([y.detach(), *torch.autograd.grad(y, held, coming)], expected)


@compiled
@pytest.mark.parametrize("short_cut", [True, False])
def test_maps_may_be_nested_and_gradients_taken_inside(short_cut: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autograd, "SHORT_CUT", short_cut)
    x, weight, bias = SECOND.tensors(clients=6)
    grouped = [tensor.reshape(2, 3, *tensor.shape[1:]) for tensor in (x, weight, bias)]
    assert torch.equal(vmap(vmap(SECOND.layer))(*grouped).flatten(0, 1), vmap(SECOND.layer)(x, weight, bias))

    def loss(weight: Tensor, x: Tensor, bias: Tensor) -> Tensor:
        return SECOND.layer(x, weight, bias).square().sum()

    inside = vmap(grad(loss))(weight, x, bias)
    held = weight.clone().requires_grad_()
    outside = torch.autograd.grad(vmap(loss)(held, x, bias).sum(), held)[0]
    assert torch.equal(inside, outside)
    per_row = vmap(grad(loss), in_dims=(None, 0, None))(weight[0], x[0, :, None], bias[0])
    assert_near([per_row.sum(0)], [grad(loss)(weight[0], x[0], bias[0])])


@compiled
def test_clients_of_the_mnist_net_train_the_same_in_every_chunk_to_the_last_bit() -> None:
    def uploads(mode: str, chunk: int) -> list[Tensor]:
        wishes = ["data=mnist5k", f"engine.mode={mode}", "scenario.clients=10", "scenario.partition=dirichlet"]
        assembly = prepare(Experiment.read(None, [*wishes, "client.batch=7", "client.steps=4", "scenario.gamma=0.05"]))
        server = assembly.workshop.method.init(assembly.net, 0)
        tasks = [Task(client, server, {}, 1) for client in assembly.scenario.active()[:10]]
        chunks = [tasks[start : start + chunk] for start in range(0, len(tasks), chunk)]
        return [leaf for own in chunks for done in assembly.workshop.train(0, own) for leaf in leaves(done.up)]

    expected = uploads("mapped", 10)
    for mode, chunk in (("mapped", 1), ("mapped", 5), ("single", 10)):
        assert_same(uploads(mode, chunk), expected)


@pytest.mark.parametrize("probability", [0.0, 0.1, 0.25, 0.3, 0.5, 0.999, 1.0])
def test_dropout_draws_what_keys_draw(probability: float, monkeypatch: pytest.MonkeyPatch) -> None:
    own = torch.tensor([keys.key(number) for number in range(3)])
    mapped = vmap(lambda key: dropout_scales(key, (3, 0), 1001, probability))
    compiled = [mapped(own), torch.stack([dropout_scales(key, (3, 0), 1001, probability) for key in own])]
    folded = keys.fold(keys.fold(own, 3), 0)
    compiled.append(torch.stack([dropout_scales(key, (), 1001, probability) for key in folded]))
    monkeypatch.setenv("SEMIFED_KERNELS", "off")
    assert all(torch.equal(one, mapped(own)) for one in compiled)


def test_a_cohort_is_mapped_as_vmap_maps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Pair(NamedTuple):
        one: Tensor
        two: Tensor

    def function(parts: dict[str, Pair], scale: Tensor) -> dict[str, Tensor]:
        return {"sum": parts["a"].one @ parts["a"].two * scale, "same": torch.ones(2)}

    parts = {"a": Pair(torch.randn(4, 3, 2), torch.randn(4, 2, requires_grad=True))}
    scale = torch.arange(4.0)
    expected = vmap(function)(parts, scale)
    for short in (True, False):
        monkeypatch.setattr(mapping, "SHORT_CUT", short and mapping.SHORT_CUT)
        found = mapping.over_clients(function)(parts, scale)
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], expected[name]) for name in expected)
        (gradient,) = torch.autograd.grad(found["sum"].sum(), [parts["a"].two])
        assert gradient.abs().sum() > 0


def test_an_error_inside_leaves_no_map_behind() -> None:
    def fail(x: Tensor) -> Tensor:
        raise ValueError("inside")

    with pytest.raises(ValueError, match="inside"):
        mapping.over_clients(fail)(torch.ones(2, 3))
    assert not torch._C._are_functorch_transforms_active()
    with pytest.raises(TypeError, match="must give tensors, not int"):
        mapping.over_clients(len)(torch.ones(2, 3))
