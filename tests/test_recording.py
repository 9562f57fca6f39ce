"""A step that is replayed gives the bits of the step; what cannot be written down is never replayed."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from semifed import library
from semifed.engine import recording
from semifed.engine.assemble import prepare
from semifed.engine.local import Task
from semifed.engine.mapping import over_clients
from semifed.engine.recording import Recorded
from semifed.experiment import Experiment
from semifed.methods import METHODS
from semifed.methods.base import Visit
from semifed.nets.kernels import dropout_scales, linear, operations
from semifed.params import leaves

needs_kernels = pytest.mark.skipif(operations.product_library().code is None, reason="no kernels on this machine")


class Counted:
    """A function, and how often it was called."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function, self.calls = function, 0

    def __call__(self, *arguments: Any) -> Any:
        self.calls += 1
        return self.function(*arguments)


def gradient(weights: dict[str, Tensor], x: Tensor) -> Any:
    """A loss mapped over clients, and the gradient of its sum, as a step takes it."""
    own = {name: value.detach().requires_grad_() for name, value in weights.items()}

    def loss(own: dict[str, Tensor], x: Tensor) -> Tensor:
        hidden = linear(x, own["weight"], own["bias"]).relu() * torch.tensor([1.0, 2.0])
        best, place = hidden.max(-1)
        return (torch.cat([hidden, x], -1).log_softmax(-1)[:, 0] * (place == 0) * best).sum() / len(x)

    losses = over_clients(loss)(own, x)
    return {"loss": losses.detach()}, torch.autograd.grad(losses.sum(), [*own.values()])


def tree(function: Callable[..., Any]) -> Callable[..., Any]:
    def called(*arguments: Any) -> Any:
        terms, gradients = function(*arguments)
        return terms, tuple(gradients)

    return called


def arguments(seed: int, clients: int = 3, rows: int = 4) -> tuple[dict[str, Tensor], Tensor]:
    made = torch.Generator().manual_seed(seed)
    weights = {"weight": torch.randn(clients, 2, 5, generator=made), "bias": torch.randn(clients, 2, generator=made)}
    return weights, torch.randn(clients, rows, 5, generator=made)


def equal(one: Any, other: Any) -> bool:
    return all(torch.equal(left, right) for left, right in zip(leaves(one), leaves(other), strict=True))


@pytest.mark.parametrize("switch", ["on", "off"])
def test_from_the_fourth_call_on_a_function_is_replayed(switch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(library.SWITCH, switch)
    function = Counted(tree(gradient))
    recorded = Recorded(function)
    for seed in range(6):
        assert equal(recorded(*arguments(seed)), tree(gradient)(*arguments(seed)))
    assert function.calls == 3


def test_every_form_of_arguments_has_a_recording_of_its_own() -> None:
    function = Counted(tree(gradient))
    recorded = Recorded(function)
    for seed in range(5):
        for clients, rows in ((3, 4), (2, 4), (3, 1)):
            given = arguments(seed, clients, rows)
            assert equal(recorded(*given), tree(gradient)(*given))
        weights, x = arguments(seed)
        strange = {name: weights[name] for name in reversed(weights)}, x.transpose(0, 1).contiguous().transpose(0, 1)
        assert equal(recorded(*strange), tree(gradient)(*strange))
    assert function.calls == 4 * 3


def test_the_same_tensor_in_two_places_is_no_bond_between_them() -> None:
    recorded, one = Recorded(lambda left, right: left - 2 * right), torch.ones(3)
    for _ in range(3):
        recorded(one, one)
    assert recorded(one, torch.zeros(3)).tolist() == [1, 1, 1]


@needs_kernels
def test_kernels_that_draw_are_written_down_too() -> None:
    function = Counted(over_clients(lambda key: dropout_scales(key, (3, 1), 50, 0.5)))
    recorded = Recorded(function)
    for seed in range(5):
        keys = torch.arange(4) + 100 * seed
        assert torch.equal(recorded(keys), function.function(keys))
    assert function.calls == 3


def of_numbers(x: Tensor) -> Tensor:
    return x * 2 if x.sum().item() > 0 else x * 3


def past_torch(x: Tensor) -> Tensor:
    made = torch.empty_like(x)
    made.numpy()[:] = x.numpy() * 2
    return made + 0


def from_elsewhere(x: Tensor) -> Tensor:
    return torch.from_numpy(x.numpy() * 2) + x


def in_place(x: Tensor) -> Tensor:
    return x.add_(1)


def of_chance(x: Tensor) -> Tensor:
    return x + torch.rand(3)


@pytest.mark.parametrize("function", [of_numbers, past_torch, from_elsewhere, in_place, of_chance])
def test_what_cannot_be_written_down_is_called_every_time(function: Callable[[Tensor], Tensor]) -> None:
    counted = Counted(function)
    recorded = Recorded(counted)
    for number in range(-4, 4):
        torch.manual_seed(number)
        expected = function(torch.arange(3) + float(number))
        torch.manual_seed(number)
        given = torch.arange(3) + float(number)
        if function is not of_chance or counted.calls != 2:  # the third call draws twice, for the comparison
            assert torch.equal(recorded(given), expected)
        else:
            recorded(given)
    assert counted.calls == 8


def test_memory_that_is_changed_on_the_way_is_new_every_time() -> None:
    def function(x: Tensor) -> Tensor:
        made = x * 2
        made.add_(x)
        made[0] = 5.0
        return made

    recorded = Recorded(Counted(function))
    for number in range(6):
        x = torch.arange(3) + float(number)
        assert torch.equal(recorded(x), function(x))


def test_a_function_that_fails_says_what_it_always_says() -> None:
    def fails(x: Tensor) -> Tensor:
        raise ValueError("no")

    recorded = Recorded(fails)
    for _ in range(4):
        with pytest.raises(ValueError, match="no"):
            recorded(torch.ones(1))


def test_results_may_lie_in_memory_as_they_like() -> None:
    recorded = Recorded(lambda x: (x[:, :1].expand(1, 4)[:, 0], x.transpose(0, 1), x > 0, x.sum()))
    for number in range(6):
        x = torch.arange(4.0).reshape(1, 4) - number
        assert equal(recorded(x), (x[:, 0], x.transpose(0, 1), x > 0, x.sum()))


def test_not_more_forms_are_remembered_than_a_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "MOST", 4)
    recorded = Recorded(lambda x: x + 1)
    for length in range(1, 20):
        assert len(recorded(torch.ones(length))) == length
    assert len(recorded._ways) <= 4


@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_replayed_with_the_same_bits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    labels = METHODS[name].labels[0]
    words = [f"method={name}", f"scenario.labels={labels}", "scenario.validation=50", "client.steps=6"]
    words += ["engine.mode=mapped", "net=mlp", "net.norm=batch"]

    def trained() -> tuple[Any, Any]:
        assembly = prepare(Experiment.read(None, words))
        method = assembly.experiment.method
        server = method.init(assembly.net, 0)
        downs = [method.download(server, Visit(client, client, 0)) for client in range(2)]
        tasks = [Task(at, down, method.enroll(assembly.net, down, 0), 1) for at, down in enumerate(downs)]
        done = assembly.workshop.train(0, tasks)
        ways = [
            way
            for pull in assembly.workshop._client_steps._pulls.values()
            for way in getattr(pull, "_ways", {}).values()
        ]
        return [(one.up, one.kept, one.terms, one.notes, one.audit) for one in done], ways

    replayed, ways = trained()
    assert any(getattr(way, "func", None) is recording._replay for way in ways)
    monkeypatch.setattr("semifed.engine.step.Recorded", lambda function: function)
    plain, _ = trained()
    for one, other in zip(replayed, plain, strict=True):
        assert equal(one[:2], other[:2])
        assert one[2:] == other[2:]
