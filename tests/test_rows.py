"""Rows of large nets that do not count in a loss: no gradient, no other number changed."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from convolutions import assert_near, assert_same
from semifed.batch import Batch, Clock, Samples
from semifed.engine.step import State, Stepper
from semifed.methods.base import Method, Terms, Visit
from semifed.methods.fedmatch import FedMatch
from semifed.methods.fixmatch import FixMatch
from semifed.methods.uda import UDA
from semifed.nets.net import LARGE, PIECE, Net, Pass
from semifed.nets.rows import together
from semifed.nets.zoo import NetSettings, make
from semifed.params import Params, Parts, lay_out, leaves
from semifed.training import ClientTraining

SHAPE = (1, 8, 8)
NET = make(NetSettings("alexnet-like"), SHAPE, 10)
KEPT = {"none": torch.zeros(7).bool(), "some": torch.arange(7) % 3 == 1, "all": torch.ones(7).bool()}


def images(rows: int) -> Tensor:
    drawn = torch.Generator().manual_seed(rows)
    return torch.randn(rows, *SHAPE, generator=drawn)


def pulls(logits: Tensor, counts: Tensor, params: Params, known: Tensor | None = None) -> list[Tensor]:
    """Gradients of a loss over the rows that count, and over all others that are given."""
    loss = (logits.square().sum(-1) * counts).sum() + (0 if known is None else known.square().sum())
    return list(torch.autograd.grad(loss, list(params.values()), allow_unused=True, materialize_grads=True))


def trained(net: Net) -> Params:
    return {name: value.requires_grad_() for name, value in net.init(0).items()}


def calls_of(net: Net, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bool]]:
    """The rows of each call of a net, and whether it is for a gradient."""
    calls, call = list[tuple[int, bool]](), net.call

    def counted(training: bool, params: Params, x: Tensor, *others: Any) -> Tensor:
        calls.append((len(x), torch.is_grad_enabled()))
        return call(training, params, x, *others)

    monkeypatch.setattr(net, "call", counted)
    return calls


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("kept", KEPT)
def test_rows_that_do_not_count_have_logits_and_no_gradient(
    monkeypatch: pytest.MonkeyPatch, kept: str, layout: torch.memory_format
) -> None:
    params, counts, real = trained(NET), KEPT[kept], torch.ones(7).bool()
    x, few = lay_out(images(7), layout), lay_out(images(3), layout)
    one = NET.pass_with(torch.tensor(0))
    known, guessed = one(params, few, real[:3]), one(params, x, real)
    expected = pulls(guessed, counts, params, known)
    calls, number = calls_of(NET, monkeypatch), int(counts.sum())
    found = one.each(params, (few, real[:3]), (x, real, counts))
    assert calls == ([] if number == 7 else [(7 - number, False)]) + [(3 + number, True)]
    assert_near([one.detach() for one in found], [known.detach(), guessed.detach()])
    assert_near(pulls(found[1], counts, params, found[0]), expected)


def test_a_batch_without_rows_leaves_the_order_in_memory_as_it_is() -> None:
    x = lay_out(images(7), torch.channels_last)
    seen = list[Tensor]()

    def forward(x: Tensor) -> Tensor:
        seen.append(x)
        return x.flatten(1)

    together(forward, (x[:0], KEPT["none"][:0]), (x, KEPT["all"], KEPT["some"]))
    assert [one.stride(1) for one in seen] == [1, 1]


@pytest.mark.parametrize("kept", KEPT)
def test_rows_that_nobody_looks_at_are_not_computed(monkeypatch: pytest.MonkeyPatch, kept: str) -> None:
    params, counts, real, x = trained(NET), KEPT[kept], torch.ones(7).bool(), images(7)
    one = NET.pass_with(torch.tensor(0))
    whole = one(params, x, real)
    expected = pulls(whole, counts, params) if bool(counts.any()) else []
    calls = calls_of(NET, monkeypatch)
    found = one.only(counts, params, x, real)
    assert sum(rows for rows, _ in calls) == int(counts.sum())
    assert found.requires_grad == bool(counts.any())
    assert_near([found.detach()], [(whole * counts[:, None]).detach()])
    if expected:
        assert_near(pulls(found, counts, params), expected)


def test_a_batch_without_rows_has_logits_and_no_gradient() -> None:
    found = NET.pass_with(torch.tensor(0)).only(KEPT["none"][:0], trained(NET), images(7)[:0], KEPT["all"][:0])
    assert found.shape == (0, 10)
    assert not found.requires_grad


class Centred(nn.Module):
    """A user's own net, large, whose rows meet, and that cannot take none."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 4000), nn.Linear(4000, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = x.view(x.size(0), -1)
        logits: Tensor = self.last(self.first(x - x.mean(0)).relu())
        return logits


@pytest.mark.parametrize("name", ["cifar-cnn", "mlp", "own"])
def test_nets_whose_rows_meet_and_small_ones_take_all(name: str) -> None:
    shape = (3, 8, 8) if name == "cifar-cnn" else (1, 8, 8)
    net = Net.of(Centred(), shape) if name == "own" else make(NetSettings(name), shape, 10)
    assert (net.size >= LARGE) == (name != "mlp")
    x, real, params = torch.randn(7, *shape), torch.arange(7) < 6, net.init(0)
    expected = net.pass_with(torch.tensor(1))(params, x, real)
    assert_same([net.pass_with(torch.tensor(1)).only(KEPT["some"], params, x, real)], [expected])
    assert_same(net.pass_with(torch.tensor(1)).each(params, (x, real, KEPT["some"])), [expected])


def test_own_nets_look_at_all_rows_at_once() -> None:
    net = Net.of(Centred(), SHAPE)
    params, x = net.init(0), images(2 * PIECE + 1)
    assert_same([net.evaluate(params, x)], [net.call(False, params, x, {})])


def test_a_loss_that_reaches_no_parameter_is_an_error_not_a_step_that_stands_still() -> None:
    class Detached(FixMatch):
        def loss(self, net: Pass, parts: Parts, batch: Batch) -> Terms:
            return {name: term.detach() for name, term in super().loss(net, parts, batch).items()}

    method = Detached()
    small = make(NetSettings("mlp"), SHAPE, 10)
    with pytest.raises(RuntimeError, match="does not require grad"):
        step(method, 3, small)


def step(method: Method, labelled: int, net: Net = NET) -> tuple[list[Tensor], dict[str, Tensor]]:
    """The parts after a step, and what was seen in it."""
    clock = Clock(*(torch.tensor(number) for number in (3, 9, 1, 0, 1, 0, 1)))
    guessed = Samples((images(7), images(7) + 0.1), torch.full((7,), -1), torch.arange(7) < 6)
    known = Samples((images(labelled),), torch.arange(labelled), torch.ones(labelled).bool())
    down = method.download(method.init(net, 0), Visit(0, 0, 0))
    stepper = Stepper(net, method.client(), ClientTraining(lr=0.1, momentum=0.9, weight_decay=0.1), mapped=False)
    batch = Batch({"unlabelled": guessed, "labelled": known}, clock)
    state, seen = stepper(State(method.start(down, {}), {}), batch, torch.tensor(0), None)
    return [value.float() for value in leaves(state.parts)], {**seen.terms, **seen.notes, **seen.guesses}


@pytest.mark.parametrize("labelled", [3, 0])
@pytest.mark.parametrize("chosen", [FixMatch, UDA, FedMatch])
def test_a_step_is_the_same_with_all_rows(
    monkeypatch: pytest.MonkeyPatch, chosen: type[FixMatch | FedMatch], labelled: int
) -> None:
    sure = NET.evaluate(NET.init(0), images(7)).softmax(-1).amax(-1)
    for threshold in (0.0, float(sure.median()), 1.0):
        method: Method = chosen(threshold=threshold)
        with monkeypatch.context() as whole:
            whole.setattr(Net, "may_leave_rows", False)
            parts, seen = step(method, labelled)
        short, seen_so = step(method, labelled)
        assert_near(short, parts)
        assert seen.keys() == seen_so.keys()
        assert_near(list(seen_so.values()), list(seen.values()))
