"""The work that every framework is given: images, split, first net and settings; and the turns in which it does it.

A script beside this one runs in an environment of its own, which has torch and the framework but not semifed:

    python -m frameworks.NAME DATA SEED ROUNDS

It does a round when a line comes in, and answers with a line of JSON: the seconds of the round, by the clock and of
the processor, and the accuracy after it. So several frameworks can run by turns, one round each.
"""

import functools
import json
import sys
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

BATCH, EPOCHS, LR, MOMENTUM = 10, 1, 0.01, 0.9


def mnist_net() -> nn.Sequential:
    """Semifed's mnist-cnn out of torch's own layers: 21,840 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 10, 5), nn.MaxPool2d(2), nn.ReLU(),
        nn.Conv2d(10, 20, 5), nn.Dropout2d(0.5), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(),
        nn.Linear(320, 50), nn.ReLU(), nn.Dropout(0.5), nn.Linear(50, 10),
    )  # fmt: skip


class Share(NamedTuple):
    """Images, as a net takes them, and their labels: a client's, or those to test on."""

    images: Tensor
    labels: Tensor


class Work(NamedTuple):
    """What is to be trained on what."""

    clients: list[Share]
    test: Share
    first: list[Tensor]

    def net(self) -> nn.Sequential:
        """The net that everybody starts with."""
        net = mnist_net()
        with torch.no_grad():
            for own, given in zip(net.parameters(), self.first, strict=True):
                own.copy_(given)
        return net

    @torch.no_grad()
    def accuracy(self, net: nn.Module) -> float:
        """The percentage of test images that a net gets right."""
        was_training = net.training
        net.eval()
        right = int((net(self.test.images).argmax(1) == self.test.labels).sum())
        net.train(was_training)
        return 100 * right / len(self.test.labels)


@functools.cache
def read_work(path: Path) -> Work:
    """The work in a file that `ours.py` has written."""
    with np.load(path) as file:
        images, labels, split = (torch.from_numpy(file[name]) for name in ("images", "labels", "split"))
        first = [torch.from_numpy(file[f"first{place}"]) for place in range(8)]
    ready = images.float().div_(255).sub_(0.1307).div_(0.3081)
    test = torch.arange(split.numel(), len(ready))  # the test images come last
    return Work([Share(ready[own], labels[own]) for own in split], Share(ready[test], labels[test]), first)


def optimiser(net: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(net.parameters(), LR, MOMENTUM)


def train(net: nn.Module, share: Share) -> None:
    """One client's visit, as anybody would write it."""
    net.train()
    moving = optimiser(net)
    for _ in range(EPOCHS):
        for rows in torch.split(torch.randperm(len(share.labels)), BATCH):
            moving.zero_grad()
            loss = F.cross_entropy(net(share.images[rows]), share.labels[rows])
            loss.backward()  # type: ignore[no-untyped-call]
            moving.step()


class Turns:
    """The clocks of one framework, which stand still while it waits for its turn."""

    def __init__(self, rounds: int) -> None:
        self.rounds, self.round = rounds, 0

    def begin(self) -> None:
        """Wait for the next turn, and start the clocks."""
        if not sys.stdin.readline():
            sys.exit("nobody wants another round")
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def end(self) -> None:
        """Stop the clocks: a round is over."""
        self._seconds = {"wall": time.perf_counter() - self._wall, "cpu": time.process_time() - self._cpu}

    def tell(self, accuracy: float) -> None:
        """Say what came of the round, and wait for the next if there is one."""
        self.round += 1
        line = json.dumps({"round": self.round, **self._seconds, "accuracy": accuracy})
        print(f"\n{line}", flush=True)
        if self.round < self.rounds:
            self.begin()


class Order(NamedTuple):
    """What the command line says."""

    data: Path
    seed: int
    rounds: int

    @classmethod
    def read(cls) -> "Order":
        """Read it, and bring torch to one thread and to its seed."""
        data, seed, rounds = sys.argv[1:4]
        torch.set_num_threads(1)
        torch.manual_seed(int(seed))
        return cls(Path(data), int(seed), int(rounds))
