"""Local steps of ten clients in several forms: a plain eager loop, and the engine with and without kernels.

`eager` is the loop that most frameworks have: one client after the other, nn.Module and optim.SGD. `engine` is
Workshop.train with torch's own operations (SEMIFED_KERNELS=off), `kernels` the same with the kernels.
"""

import copy
import dataclasses
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from frameworks.work import mnist_net
from semifed import library
from semifed.data import sources
from semifed.data.sources import Dataset
from semifed.data.views import View
from semifed.engine.assemble import Assembly, prepare
from semifed.engine.local import Task
from semifed.experiment import Experiment
from semifed.methods.fedavg import FedAvg
from semifed.methods.fedsiam import FedSiamMT
from semifed.nets import zoo

CLIENTS = 10
Work = Callable[[], object]


@dataclass(frozen=True)
class Case:
    """Which steps are measured."""

    net: str
    method: FedAvg | FedSiamMT
    batch: int
    steps: int = 20  # of each client

    def __str__(self) -> str:
        name = "FedSiam-MT" if isinstance(self.method, FedSiamMT) else "FedAvg"
        return f"{self.net}, {name}, batch {self.batch}"


def race(forms: Mapping[str, Work], repeats: int, clock: Callable[[], float] = time.thread_time) -> dict[str, float]:
    """Milliseconds of each form, by turns."""
    least = dict.fromkeys(forms, float("inf"))
    for turn in range(repeats + 1):
        for name, work in forms.items():
            started = clock()
            work()
            if turn:  # the first is for warming up
                least[name] = min(least[name], 1000 * (clock() - started))
    return least


def switched(on: bool, work: Work) -> Work:
    """The same work with or without kernels."""

    def run() -> None:
        os.environ[library.SWITCH] = "on" if on else "off"
        work()

    return run


def _dataset(case: Case) -> Dataset:
    """Digits for the MNIST net, noise of CIFAR's shape for the others; each client has just what its steps read."""
    train = CLIENTS * case.steps * case.batch
    digits = sources.load("mnist5k")
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(train + 10) % 10
    if case.net == "mnist-cnn":
        rows = torch.randint(digits.train, (train + 10,), generator=generator)
        rows[train:] = torch.arange(digits.train, digits.train + 10)  # the test images must be others
        return dataclasses.replace(digits, images=digits.images[rows], labels=labels, train=train)
    noise = torch.randint(256, (train + 10, 3, 32, 32), generator=generator, dtype=torch.uint8)
    return Dataset("noise", noise, labels, train, digits.classes, (0.5,) * 3, (0.5,) * 3, flips=True)


def _eager_net(case: Case) -> nn.Module:
    if case.net == "mnist-cnn":
        return mnist_net()
    return zoo.NETS[case.net].build((3, 32, 32), 10, zoo.NETS[case.net].norm)


def _eager_client(assembly: Assembly, start: nn.Module, order: Tensor, view: View, target: bool) -> None:
    """One client's visit: FedAvg, or with a target net that follows and a consistency term."""
    training = assembly.workshop.training
    net = copy.deepcopy(start).train()
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


def assembled(case: Case, workers: int = 1, chunk: int = CLIENTS) -> tuple[Assembly, list[Task]]:
    """What ten clients train, and their turns."""
    siamese = isinstance(case.method, FedSiamMT)
    wishes = [f"net={case.net}", f"engine.workers={workers}", f"engine.chunk={chunk}", f"scenario.clients={CLIENTS}"]
    wishes += [f"client.batch={case.batch}", "client.epochs=1", f"scenario.gamma={0.5 if siamese else 1.0}"]
    assembly = prepare(dataclasses.replace(Experiment.read(None, wishes), method=case.method, data=_dataset(case)))
    server = case.method.init(assembly.net, 0)
    return assembly, [Task(client, server, {}, 1) for client in range(CLIENTS)]


def eager_form(case: Case, assembly: Assembly) -> Work:
    """The same visits in a plain loop."""
    siamese, start = isinstance(case.method, FedSiamMT), _eager_net(case)
    # A siamese visit reads every image; which of them carry labels makes no difference to the time.
    held = [torch.cat([torch.tensor(site.labelled), torch.tensor(assembly.scenario.unlabelled_at(client, 0))])
            for client, site in enumerate(assembly.scenario.clients)]  # fmt: skip
    view = assembly.workshop.views["weak" if siamese else "clean"]

    def eager() -> None:
        for own in held:
            _eager_client(assembly, start, own[torch.randperm(len(own))], view, siamese)

    return eager


def step_forms(case: Case) -> dict[str, Work]:
    """The same visits of ten clients in three forms."""
    assembly, tasks = assembled(case)

    def engine() -> None:
        assembly.workshop.train(0, tasks)

    eager = eager_form(case, assembly)
    return {"eager": eager, "engine": switched(False, engine), "kernels": switched(True, engine)}
