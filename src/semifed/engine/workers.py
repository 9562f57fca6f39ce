"""Worker processes: each holds the same workshop and trains whole chunks, so the numbers are those of one process.

The images lie in memory once, shared. Tasks and outcomes travel as payload bytes, as they would over a network.
"""

import dataclasses
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
import torch.multiprocessing  # teaches worker processes to receive tensors in shared memory

from semifed.data.scenario import Scenario
from semifed.data.sources import Dataset
from semifed.engine.assemble import Assembly, assemble
from semifed.engine.local import Clients, Outcome, Task, Workshop
from semifed.errors import RunError, SettingError
from semifed.experiment import Experiment
from semifed.params import Parts, place, tree_map
from semifed.payload import pack, unpack


def open_clients(assembly: Assembly) -> Clients:
    """The clients of a run on this machine, over as many processes as the experiment asks for."""
    engine = assembly.experiment.engine
    if engine.workers == 1:
        return InProcess(assembly.workshop, engine.chunk)
    return Workers(assembly)


def _chunks(tasks: Sequence[Task], size: int) -> list[Sequence[Task]]:
    return [tasks[start : start + size] for start in range(0, len(tasks), size)]


class InProcess:
    """Chunks one after the other, in this process."""

    def __init__(self, workshop: Workshop, chunk: int) -> None:
        self._workshop, self._chunk = workshop, chunk

    def train(self, round: int, tasks: Sequence[Task]) -> list[Outcome]:
        """The outcome of every task, in the order of the tasks."""
        return [outcome for chunk in _chunks(tasks, self._chunk) for outcome in self._workshop.train(round, chunk)]

    def close(self) -> None:
        """Nothing to let go of."""


class Workers:
    """Chunks side by side, each in a process of its own."""

    def __init__(self, assembly: Assembly) -> None:
        engine = assembly.experiment.engine
        self._chunk, self._device = engine.chunk, assembly.workshop.device
        start = _way_to_start(assembly)
        dataset = _share(assembly) if start == "spawn" else assembly.dataset
        self._pool = ProcessPoolExecutor(
            engine.workers,
            multiprocessing.get_context(start),
            _start_worker,
            (assembly.experiment, dataset, assembly.scenario),
        )

    def train(self, round: int, tasks: Sequence[Task]) -> list[Outcome]:
        """The outcome of every task, in the order of the tasks."""
        packed: dict[Any, bytes] = {}  # most clients receive the same thing: it is packed once, and sent once a chunk

        def send(parts: Parts) -> bytes:
            own = _identity(parts)
            if own not in packed:
                packed[own] = pack(parts)
            return packed[own]

        chunks = [
            [(task.client, send(task.down), send(task.kept), task.visits) for task in chunk]
            for chunk in _chunks(tasks, self._chunk)
        ]
        try:
            with _deaf_children():
                answers = [self._pool.submit(_train_chunk, round, chunk) for chunk in chunks]
            outcomes = [outcome for answer in answers for outcome in answer.result()]
        except BrokenProcessPool:
            raise RunError(
                "engine.workers: a worker process died: out of memory, or a script that lacks "
                "`if __name__ == '__main__':`; lower engine.chunk or engine.workers and go on with --resume"
            ) from None
        return [
            Outcome(place(unpack(up), self._device), unpack(kept), examples, terms, notes)
            for up, kept, examples, terms, notes in outcomes
        ]

    def close(self) -> None:
        """End the processes, whatever they are doing: what they have not answered is not wanted any more."""
        processes = list((self._pool._processes or {}).values())
        for process in processes:
            process.kill()
        self._pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.join()


def _way_to_start(assembly: Assembly) -> str:
    """A fork has everything at once, but only Linux does it well, and no device but the CPU survives it."""
    wanted, device = assembly.experiment.engine.start, assembly.workshop.device
    can_fork = sys.platform == "linux" and device.type == "cpu"
    if wanted == "fork" and not can_fork:
        raise SettingError('engine.start: workers can be forked on Linux and the CPU only; use "spawn" or "auto"')
    return "fork" if can_fork and wanted != "spawn" else "spawn"


def _identity(tree: Any) -> Any:
    """Equal for trees of the same names and the very same tensors."""
    if isinstance(tree, Mapping):
        return tuple((name, _identity(branch)) for name, branch in tree.items())
    return tuple(map(_identity, tree)) if isinstance(tree, tuple) else id(tree)


def _share(assembly: Assembly) -> Dataset:
    """The data set with its images in shared memory, once it is clear that all else can be sent to a process."""
    try:
        ForkingPickler.dumps(dataclasses.replace(assembly.experiment, data="synthetic"))
    except Exception as error:
        raise SettingError(
            f"engine.workers: the experiment cannot be sent to a process ({error}); "
            "define your net and method at the top of a module, or use engine.workers = 1"
        ) from None
    images: Any = assembly.dataset.images
    try:
        return dataclasses.replace(assembly.dataset, images=images.share_memory_())
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise RunError(f"engine.workers: no shared memory for the images ({reason}); use engine.workers = 1") from None


@contextmanager
def _deaf_children() -> Iterator[None]:
    """Processes that start meanwhile never hear Ctrl-C, not even while they start; this one hears it afterwards."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_workshop: Workshop | None = None


def _start_worker(experiment: Experiment, dataset: Dataset, scenario: Scenario) -> None:
    global _workshop  # noqa: PLW0603  a worker process has no other place to keep what it was started with
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the main process's to handle
    threading.Thread(target=_end_with_main_process, daemon=True).start()
    torch.set_num_threads(experiment.engine.threads)
    _workshop = assemble(experiment, dataset, scenario).workshop


def _end_with_main_process() -> None:
    """A main process that is killed cannot end its workers, and they would wait for it for ever."""
    main = multiprocessing.parent_process()
    if main:
        main.join()
        os._exit(1)


def _own(packed: bytes) -> Parts:
    """A payload in memory of torch's own: with some libraries the last bit of a product depends on alignment."""
    parts: Parts = tree_map(torch.clone, unpack(packed))
    return parts


def _train_chunk(
    round: int, tasks: list[tuple[int, bytes, bytes, int]]
) -> list[tuple[bytes, bytes, int, dict[str, float], dict[str, float]]]:
    if _workshop is None:
        raise RuntimeError("the worker was not started")
    distinct = {id(down): down for _, down, _, _ in tasks}
    received = {own: unpack(down) for own, down in distinct.items()}
    chunk = [Task(client, received[id(down)], unpack(kept), visits) for client, down, kept, visits in tasks]
    outcomes = _workshop.train(round, chunk)
    return [(pack(one.up), pack(one.kept), one.examples, one.terms, one.notes) for one in outcomes]
