"""Two cores: ours on two workers against one, against a plain loop of one and two threads, and what there is to gain.

python benchmarks/cores.py [--short]

Local steps of ten clients, wall time, by turns, the least of several turns: run it on a machine that does nothing else
(two threads of torch wait for each other in every layer, and beside other work they hardly get on). `apart` are two
processes that each train all ten clients and know nothing of each other: twice the work, so it shows how much two cores
of this machine can do together.
"""

import multiprocessing
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from multiprocessing.connection import Connection

import torch

import limits
from semifed.engine.local import Clients
from semifed.engine.workers import InProcess, open_clients
from semifed.methods.fedavg import FedAvg
from semifed.methods.fedsiam import FedSiamMT
from steps import CLIENTS, Case, Work, assembled, eager_form, race

CORES = 2
EACH = CLIENTS // CORES


def threads(count: int, work: Work) -> Work:
    """The work with so many threads of torch."""

    def run() -> None:
        torch.set_num_threads(count)
        work()
        torch.set_num_threads(1)

    return run


@contextmanager
def apart(work: Work) -> Iterator[Work]:
    """The same work in two processes at once."""
    context, pipes, processes = multiprocessing.get_context("fork"), list[Connection](), []
    for _ in range(CORES):
        here, there = context.Pipe()
        processes.append(context.Process(target=_obey, args=(there, work), daemon=True))
        pipes.append(here)
        processes[-1].start()

    def both() -> None:
        for pipe in pipes:
            pipe.send(True)
        for pipe in pipes:
            pipe.recv()

    try:
        yield both
    finally:
        for pipe, process in zip(pipes, processes, strict=True):
            pipe.send(False)
            process.join()
            pipe.close()


def _obey(main: Connection, work: Work) -> None:
    while main.recv():
        work()
        main.send(True)


def measure(case: Case, repeats: int) -> dict[str, float]:
    """Milliseconds for the steps of a case, in every form."""
    one, tasks = assembled(case, chunk=EACH)
    two, _ = assembled(case, workers=CORES, chunk=EACH)
    alone: Clients = InProcess(one.workshop, EACH)
    eager = eager_form(case, one)
    with ExitStack() as stack:  # processes are forked before torch has threads
        together = stack.enter_context(closing(open_clients(two)))
        independent = stack.enter_context(apart(lambda: alone.train(0, tasks)))
        forms: dict[str, Work] = {
            "loop": threads(1, eager),
            "loop, two threads": threads(CORES, eager),
            "one worker": lambda: alone.train(0, tasks),
            "two workers": lambda: together.train(0, tasks),
            "apart": independent,
        }
        return race(forms, repeats, time.perf_counter)


def show(case: Case, times: dict[str, float]) -> None:
    images = CLIENTS * case.steps * case.batch
    print(f"\n{case}: images a second, and how many times as fast two workers are", flush=True)
    for name, took in times.items():
        count = CORES if name == "apart" else 1
        ratio = took / times["two workers"] / count
        print(f"  {name:20} {1000 * count * images / took:9.0f} {ratio:6.2f}x", flush=True)
    gain = times["loop, two threads"] / times["two workers"]
    print(
        f"  visits of {case.steps} steps: two workers are {gain:.2f} times as fast as the loop with two threads",
        flush=True,
    )
    both = CORES * times["one worker"] / times["apart"]
    print(f"  two processes that know nothing of each other do {both:.2f} times the work of one", flush=True)


def of_the_machine(case: Case, took: float, short: bool) -> None:
    """How near the large net comes to the machine's own rates, one thread."""
    rates = limits.rates(1 if short else 4)
    print(flush=True)
    limits.show(rates)
    parts, step = limits.cifar_step(rates, case.batch), took / 1000 / CLIENTS / case.steps
    listed = ", ".join(f"{name} {1000 * seconds:.1f}" for name, seconds in parts.items())
    least = sum(parts.values())
    print(f"a step of cifar-cnn at these rates: {1000 * least:.1f} ms ({listed})")
    print(f"  measured {1000 * step:.1f} ms on one worker: {least / step:.0%} of the machine's rate", flush=True)


def main() -> None:
    torch.set_num_threads(1)
    short = "--short" in sys.argv
    siamese = Case("mnist-cnn", FedSiamMT(repeat=1), 10, 60)
    show(siamese, measure(siamese, 1 if short else 8))
    # In the full form visits of 120 images, as runs have them: 23 MB are sent there and back for each.
    large = Case("cifar-cnn", FedAvg(), 10, 2 if short else 12)
    times = measure(large, 1 if short else 3)
    show(large, times)
    of_the_machine(large, times["one worker"], short)


if __name__ == "__main__":
    main()
