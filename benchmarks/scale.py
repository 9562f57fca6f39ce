"""Whole runs: paper scale, large cohorts, many clients with kept state, and what the engine itself takes.

python benchmarks/scale.py [--short]

Images are random, of MNIST's size and number: how fast a run is does not depend on what they show. Wall time; run it on
a machine that does nothing else.
"""

import dataclasses
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

import semifed
from semifed.engine.local import Workshop
from semifed.results.evaluate import Examiner

PAPER = ("scenario.clients=100", "train.clients_per_round=10", "client.batch=10", "client.lr=0.01", "net=mnist-cnn")
SIAM = ("method=fedsiam-d", "scenario.gamma=0.1", "client.epochs=5", 'views.weak=["shift"]', "views.shift=2")


def images() -> semifed.Dataset:
    """60,000 and 10,000 random images of ten classes."""
    draw = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (70_000, 1, 28, 28), dtype=torch.uint8, generator=draw)
    labels = torch.arange(70_000) % 10
    return semifed.Dataset("random", pixels, labels, 60_000, tuple("0123456789"), (0.5,), (0.3,), flips=False)


def run(data: semifed.Dataset, *words: str) -> tuple[float, semifed.Record]:
    """A run in a folder, with checkpoints and tests at the default cadence: its seconds and its record."""
    experiment = dataclasses.replace(semifed.Experiment.read(None, words), data=data)
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        record = semifed.run(experiment, Path(folder, "run"))
        return time.perf_counter() - started, record


def round_seconds(data: semifed.Dataset, *words: str) -> float:
    """The fastest round but the first."""
    _, record = run(data, *words)
    return min(float(row["seconds"]) for row in record.rows[1:])


@contextmanager
def stopwatch(spent: dict[str, float]) -> Iterator[None]:
    """Add up the time inside local steps and inside tests."""

    def timed(name: str, function: Any) -> Any:
        def call(*inputs: Any, **more: Any) -> Any:
            started = time.perf_counter()
            try:
                return function(*inputs, **more)
            finally:
                spent[name] = spent.get(name, 0.0) + time.perf_counter() - started

        return call

    with (
        patch.object(Workshop, "_steps", timed("local steps", Workshop._steps)),
        patch.object(Examiner, "__call__", timed("tests", Examiner.__call__)),
    ):
        yield


def paper_scale(data: semifed.Dataset, rounds: int) -> None:
    """FedSiam-D and FedAvg as in the papers, and where the time of the first goes."""
    spent: dict[str, float] = {}
    with stopwatch(spent):
        total, _ = run(data, *PAPER, *SIAM, f"train.rounds={rounds}")
    rest = total - sum(spent.values())
    shares = ", ".join(f"{name} {seconds / total:.1%}" for name, seconds in {**spent, "all else": rest}.items())
    print(f"FedSiam-D, {rounds} rounds x 10 clients x 360 steps, one process: {total:.1f} s ({shares})", flush=True)
    two, _ = run(data, *PAPER, *SIAM, f"train.rounds={rounds}", "engine.workers=2", "engine.chunk=5")
    print(f"  the same on two workers: {two:.1f} s", flush=True)
    words = ("method=fedavg", "scenario.gamma=0.1", "client.epochs=5", f"train.rounds={rounds}")
    average, _ = run(data, *PAPER, *words)
    print(f"FedAvg, {rounds} rounds x 10 clients x 30 steps, one process: {average:.1f} s", flush=True)


def cohorts(data: semifed.Dataset) -> None:
    """Ten clients a round and five hundred."""
    words = ("net=mnist-cnn", "scenario.clients=1000", "scenario.gamma=1", "client.epochs=1", "train.rounds=3")
    few, many = (
        round_seconds(data, *words, f"train.clients_per_round={count}", "train.evaluate_every=1000")
        for count in (10, 500)
    )
    print(f"a round of FedAvg: 10 clients {few:.3f} s, 500 clients {many:.2f} s ({many / few:.1f}x)", flush=True)


def population(clients: int) -> None:
    """FedCon with as many clients, each with a state of its own; in a process of its own, for its memory."""
    words = [f"scenario.clients={clients}", "scenario.labels=server", "scenario.gamma=0.1", "client.steps=1"]
    words += ["method=fedcon", "net=mnist-cnn", "train.clients_per_round=100", "train.rounds=20", "server.steps=1"]
    _, record = run(images(), *words, "train.evaluate_every=1000")
    fastest = min(row["seconds"] for row in record.rows[1:])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"FedCon, {clients:,} clients, 100 a round: {fastest:.2f} s a round, peak {peak:.2f} GiB", flush=True)


def main() -> None:
    if "--population" in sys.argv:
        population(int(sys.argv[-1]))
        return
    short, data = "--short" in sys.argv, images()
    paper_scale(data, 2 if short else 50)
    cohorts(data)
    for clients in (10_000,) if short else (1_000, 10_000):
        subprocess.run([sys.executable, __file__, "--population", str(clients)], check=True)


if __name__ == "__main__":
    main()
