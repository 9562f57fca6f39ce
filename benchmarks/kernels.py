"""What the kernels gain: each layer by itself, whole local steps of the MNIST net, and its evaluation. One thread.

python benchmarks/kernels.py [--short]

Everything is run in turns, and the least CPU time of several turns counts: other processes may be running.
`eager` is the plain loop that most frameworks have: one client after the other, nn.Module and optim.SGD. `engine` is
Workshop.train with torch's own operations (SEMIFED_KERNELS=off), `kernels` the same with the kernels.
"""

import copy
import dataclasses
import os
import sys
import time
from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import vmap

from semifed.data.views import View
from semifed.engine.assemble import Assembly, prepare
from semifed.engine.local import Task
from semifed.experiment import Experiment
from semifed.methods.fedavg import FedAvg
from semifed.methods.fedsiam import FedSiamMT
from semifed.nets import kernels
from semifed.nets.kernels import library

CLIENTS = 10
Work = Callable[[], object]


def race(forms: Mapping[str, Work], repeats: int) -> dict[str, float]:
    """Milliseconds of each form, by turns."""
    least = dict.fromkeys(forms, float("inf"))
    for turn in range(repeats + 1):
        for name, work in forms.items():
            started = time.thread_time()
            work()
            if turn:  # the first is for warming up
                least[name] = min(least[name], 1000 * (time.thread_time() - started))
    return least


def switched(on: bool, work: Work) -> Work:
    """The same work with or without kernels."""

    def run() -> None:
        os.environ[library.SWITCH] = "on" if on else "off"
        work()

    return run


def show(name: str, times: Mapping[str, float], steps: int = 1) -> None:
    slowest = next(iter(times.values()))
    cells = [f"{form} {value / steps:8.2f} ms ({slowest / value:4.1f}x)" for form, value in times.items()]
    print(f"{name:34} " + "   ".join(cells))


# --- layers


def torch_conv(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.relu(F.max_pool2d(F.conv2d(x, weight, bias), 2))


def layer_forms(ours: Callable[..., Tensor], plain: Callable[..., Tensor], tensors: list[Tensor]) -> dict[str, Work]:
    """Forward and backward of ten clients: one by one, torch's mapped, and ours."""
    held = [tensors[0], *(tensor.requires_grad_() for tensor in tensors[1:])]

    def one_by_one() -> None:
        for own in zip(*held, strict=True):
            leaves = [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in own]
            torch.autograd.grad(plain(*leaves).sum(), [leaf for leaf in leaves if leaf.requires_grad])

    def stacked(layer: Callable[..., Tensor]) -> Work:
        wanted = [tensor for tensor in held if tensor.requires_grad]
        return lambda: torch.autograd.grad(vmap(layer)(*held).sum(), wanted)

    return {"eager": one_by_one, "mapped": stacked(plain), "kernels": stacked(ours)}


def layers(repeats: int) -> None:
    print(f"one layer, forward and backward, {CLIENTS} clients x 10 rows")
    sizes = {"conv 1-10 of 28x28": (1, 10, 28), "conv 10-20 of 12x12": (10, 20, 12)}
    for name, (channels, out, side) in sizes.items():
        x = torch.randn(CLIENTS, 10, channels, side, side, requires_grad=channels > 1)
        weight, bias = torch.randn(CLIENTS, out, channels, 5, 5) / 10, torch.zeros(CLIENTS, out)
        forms = layer_forms(kernels.conv_pool_relu, torch_conv, [x, weight, bias])
        show(f"  {name} + pool + relu", race({key: switched(True, form) for key, form in forms.items()}, repeats))
    for width, out in ((320, 50), (50, 10)):
        x = torch.randn(CLIENTS, 10, width, requires_grad=True)
        forms = layer_forms(kernels.linear, F.linear, [x, torch.randn(CLIENTS, out, width), torch.randn(CLIENTS, out)])
        show(f"  linear {width}-{out}", race({key: switched(True, form) for key, form in forms.items()}, repeats))


# --- local steps


def eager_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 10, 5), nn.MaxPool2d(2), nn.ReLU(),
        nn.Conv2d(10, 20, 5), nn.Dropout2d(0.5), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(),
        nn.Linear(320, 50), nn.ReLU(), nn.Dropout(0.5), nn.Linear(50, 10),
    )  # fmt: skip


def eager_client(assembly: Assembly, order: Tensor, view: View, target: bool) -> None:
    """One client's visit: FedAvg, or with a target net that follows and a consistency term."""
    training = assembly.workshop.training
    net = eager_net()
    followed = copy.deepcopy(net) if target else None
    optimiser = torch.optim.SGD(net.parameters(), training.lr, training.momentum, weight_decay=training.weight_decay)
    for rows in torch.split(order, training.batch):
        images, y = assembly.dataset.images[rows], assembly.dataset.labels[rows]
        logits = net(view(images, rows))
        loss = F.cross_entropy(logits, y)
        if followed is not None:
            with torch.no_grad():
                aim = followed(view(images, rows + 99_999)).softmax(1)
            loss = loss + (logits.softmax(1) - aim).square().mean()
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        if followed is not None:
            with torch.no_grad():
                for slow, fast in zip(followed.parameters(), net.parameters(), strict=True):
                    slow.lerp_(fast, 0.01)


def step_forms(method: FedAvg | FedSiamMT, batch: int) -> tuple[dict[str, Work], int]:
    """The same visits of ten clients in three forms, and how many steps each has."""
    wishes = ["data=mnist5k", "engine.mode=mapped", f"engine.chunk={CLIENTS}", f"scenario.clients={CLIENTS}"]
    wishes += [f"client.batch={batch}", "client.epochs=1", "scenario.gamma=0.5"]
    assembly = prepare(dataclasses.replace(Experiment.read(None, wishes), method=method))
    workshop, siamese = assembly.workshop, isinstance(method, FedSiamMT)
    server = method.init(assembly.net, 0)
    tasks = [Task(client, server, {}, 1) for client in range(CLIENTS)]
    held = [torch.tensor(site.labelled) for site in assembly.scenario.clients]
    # A siamese visit reads every image; which of them carry labels makes no difference to the time.
    held = [torch.cat([own, torch.tensor(assembly.scenario.unlabelled_at(client, 0))]) if siamese else own
            for client, own in enumerate(held)]  # fmt: skip
    steps = -(-len(held[0]) // batch)
    view = workshop.views["weak" if siamese else "clean"]

    def eager() -> None:
        for own in held:
            eager_client(assembly, own[torch.randperm(len(own))], view, siamese)

    def engine() -> None:
        workshop.train(0, tasks)

    return {"eager": eager, "engine": switched(False, engine), "kernels": switched(True, engine)}, steps


def local_steps(repeats: int) -> None:
    print(f"local steps of the MNIST net, {CLIENTS} clients, ms for one step of all of them")
    for name, method, batch in (
        ("FedAvg, batch 10", FedAvg(), 10),
        ("FedSiam-MT, batch 10", FedSiamMT(repeat=1), 10),
        ("FedSiam-MT, batch 60", FedSiamMT(repeat=1), 60),
    ):
        forms, steps = step_forms(method, batch)
        show(f"  {name}", race(forms, repeats), steps)


def evaluation(repeats: int) -> None:
    print("evaluation of 1,000 images, 500 at once")
    assembly = prepare(Experiment.read(None, ["data=mnist5k"]))
    params, images = assembly.net.init(0), torch.randn(1000, 1, 28, 28)

    @torch.no_grad()
    def work() -> None:
        for some in torch.split(images, 500):
            assembly.net.evaluate(params, some)

    show("  mnist-cnn", race({"torch": switched(False, work), "kernels": switched(True, work)}, repeats))


def main() -> None:
    torch.set_num_threads(1)
    repeats = 3 if "--short" in sys.argv else 12
    print(f"kernels: {kernels.status()}")
    layers(5 * repeats)
    evaluation(repeats)
    local_steps(repeats)


if __name__ == "__main__":
    main()
