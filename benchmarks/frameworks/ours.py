"""Semifed: the rounds of an experiment, mapped over ten clients in one process, or five and five in two workers.

python -m frameworks.ours DATA SEED ROUNDS [WORKERS]        DATA is not read: the work is written from here
"""

import dataclasses
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import torch

from frameworks.work import BATCH, EPOCHS, LR, MOMENTUM, Order, Turns
from semifed.data import sources
from semifed.data.sources import Dataset
from semifed.engine.assemble import Assembly, prepare
from semifed.engine.rounds import Progress, begin, run_rounds
from semifed.engine.workers import open_clients
from semifed.experiment import Experiment
from semifed.results.evaluate import Examiner
from semifed.results.record import Row

CLIENTS, EACH = 10, 600


def digits() -> Dataset:
    """The embedded digits. Ten clients of 600 images need more than its 4,000, so half of them are there twice."""
    data = sources.load("mnist5k")
    rows = torch.cat([torch.arange(CLIENTS * EACH) % data.train, torch.arange(data.train, len(data.labels))])
    return dataclasses.replace(data, images=data.images[rows], labels=data.labels[rows], train=CLIENTS * EACH)


def assembly(seed: int, rounds: int = 1, workers: int = 1) -> Assembly:
    """FedAvg of all ten clients, every image with its label."""
    wishes = [f"seed={seed}", f"scenario.clients={CLIENTS}", "scenario.gamma=1.0", f"train.rounds={rounds}"]
    wishes += [f"train.clients_per_round={CLIENTS}", f"train.evaluate_every={rounds}", f"client.epochs={EPOCHS}"]
    wishes += [f"client.batch={BATCH}", f"client.lr={LR}", f"client.momentum={MOMENTUM}", "client.weight_decay=0.0"]
    wishes += [f"engine.workers={workers}", f"engine.chunk={CLIENTS // workers}"]
    return prepare(dataclasses.replace(Experiment.read(None, wishes), data=digits()))


def write_work(path: Path, seed: int) -> None:
    """The images, the split and the first net of this seed, for those who do not have semifed."""
    ours = assembly(seed)
    first = {f"first{place}": value.numpy() for place, value in enumerate(begin(ours).server["net"].values())}
    split = np.stack([client.labelled for client in ours.scenario.clients])
    np.savez(path, images=ours.dataset.images.numpy(), labels=ours.dataset.labels.numpy(), split=split, **first)


def main() -> None:
    order = Order.read()
    ours = assembly(order.seed, order.rounds, int(sys.argv[4]) if len(sys.argv) > 4 else 1)
    turns = Turns(order.rounds)
    examine = Examiner(ours.net, *ours.test_set(), ours.workshop.views["clean"])

    def done(_row: Row, progress: Progress) -> None:
        turns.end()
        turns.tell(examine(progress.server["net"]).accuracy)

    with closing(open_clients(ours)) as clients:
        turns.begin()
        run_rounds(ours, clients, begin(ours), done)


if __name__ == "__main__":
    main()
