"""Descent and moving averages: the kernel gives what torch gives, and methods train the same without kernels."""

from contextlib import closing

import pytest
import torch
from torch import Tensor, nn

from convolutions import assert_near, compiled
from semifed import library
from semifed.engine.assemble import prepare
from semifed.engine.rounds import begin, run_rounds
from semifed.engine.workers import open_clients
from semifed.experiment import Experiment
from semifed.nets.kernels.updates import Rule, descend, follow
from semifed.nets.slots import Slots
from semifed.params import leaves

SHAPES = ((3, 5), (7,), (4, 3, 3, 3), (33,), ())
RULES = [Rule(0.0, 0.0), Rule(0.0, 0.01), Rule(0.9, 0.0), Rule(0.9, 0.01), Rule(0.9, 0.01, nesterov=True)]


def tensors(seed: int, clients: int = 3) -> list[Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return [torch.randn(clients, *shape, generator=draw) for shape in SHAPES]


@compiled
@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("rate", [torch.tensor(0.1), torch.tensor([0.1, 0.0, 0.3])], ids=["one rate", "rates"])
@pytest.mark.parametrize("first", [True, False], ids=["first step", "later"])
def test_descent_is_that_of_torch(rule: Rule, rate: Tensor, first: bool) -> None:
    before = None if first or not rule.momentum else tensors(3)
    values, gradients = tensors(1), tensors(2)
    ours = descend(values, gradients, before, rate, rule)
    with library.off():
        expected = descend(values, gradients, before, rate, rule)
    for one, other in zip(ours, expected, strict=True):
        assert len(one) == len(other)
        if one:
            assert_near(one, other)
    assert all(map(torch.equal, values, tensors(1)))  # nothing is changed in place


@compiled
@pytest.mark.parametrize("decay", [torch.tensor(0.99), torch.tensor([0.0, 0.5, 1.0])], ids=["one", "each"])
def test_a_moving_average_is_that_of_torch(decay: Tensor) -> None:
    ours = follow(tensors(1), tensors(2), decay)
    with library.off():
        assert_near(ours, follow(tensors(1), tensors(2), decay))


@compiled
def test_a_client_moves_the_same_in_any_company_and_however_it_lies_in_memory() -> None:
    rule, rate = Rule(0.9, 0.01, nesterov=True), torch.tensor(0.1)
    together = descend(tensors(1), tensors(2), tensors(3), rate, rule)
    for client in range(3):
        values, gradients, before = ([one[client].clone() for one in tensors(seed)] for seed in (1, 2, 3))
        alone = descend(values, gradients, before, rate, rule)
        for one, other in zip(alone, together, strict=True):
            assert all(map(torch.equal, one, (some[client] for some in other)))
    image = [torch.randn(2, 4, 3, 3) for _ in range(3)]
    plain = descend([image[0]], [image[1]], [image[2]], rate, rule)
    turned = [one.contiguous(memory_format=torch.channels_last) for one in image]
    for gradient in (turned[1], image[1]):
        mixed = descend([turned[0]], [gradient], [turned[2]], rate, rule)
        assert torch.equal(mixed[0][0], plain[0][0])
        assert torch.equal(mixed[1][0], plain[1][0])
        assert mixed[0][0].is_contiguous(memory_format=torch.channels_last)
    shared, pull = torch.randn(5).expand(3, 5), torch.randn(3, 5)
    assert torch.equal(*(descend([one], [pull], None, rate, rule)[0][0] for one in (shared, shared.clone())))


@compiled
def test_what_the_kernel_cannot_take_goes_to_torch() -> None:
    values, gradients = torch.randn(4, dtype=torch.float64), torch.randn(4, dtype=torch.float64)
    moved, _ = descend([values], [gradients], None, torch.tensor(0.5), Rule())
    assert torch.equal(moved[0], values - 0.5 * gradients)


@compiled
@pytest.mark.parametrize(
    ("method", "more"),
    [
        ("fedavg", ()),
        ("fedprox", ()),
        ("fedsiam-mt", ()),
        ("fedsiam-d", ()),
        ("fedmatch", ("scenario.validation=100",)),
        ("fedcon", ("scenario.labels=server",)),
    ],
)
def test_a_round_ends_the_same_without_kernels(method: str, more: tuple[str, ...]) -> None:
    words = ["data=mnist5k", "net=mnist-cnn", f"method={method}", "scenario.clients=20", "train.clients_per_round=3"]
    words += [
        "client.steps=2",
        "client.batch=5",
        "client.unlabelled_batch=5",
        "server.steps=1",
        "train.rounds=1",
        *more,
    ]

    def after_a_round() -> list[Tensor]:
        assembly = prepare(Experiment.read(None, [*words, *more]))
        with closing(open_clients(assembly)) as clients:
            server = run_rounds(assembly, clients, begin(assembly), lambda *_: None).server
        return [leaf for leaf in leaves(server) if leaf.is_floating_point()]

    ours = after_a_round()
    with library.off():
        assert_near(ours, after_a_round())


def test_a_module_called_with_other_tensors_has_its_own_again_whatever_happens() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    own, slots = dict(module.named_parameters()), Slots(module)
    other = {name: torch.ones_like(value) for name, value in own.items()}
    assert slots.call(other, torch.ones(1, 2)).item() == 7
    with pytest.raises(RuntimeError, match="shapes"):
        slots.call(other, torch.ones(1, 3))
    assert all(value is own[name] for name, value in module.named_parameters())
