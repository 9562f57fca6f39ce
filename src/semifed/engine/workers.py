"""Worker processes: each holds the same workshop and trains whole chunks, so the numbers are those of one process.

The images lie in memory once, shared. Tasks and outcomes travel as payload bytes, as they would over a network.
"""

import dataclasses
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
import torch.multiprocessing  # teaches worker processes to receive tensors in shared memory

from semifed.data.scenario import Scenario
from semifed.data.sources import Dataset
from semifed.engine.assemble import Assembly, assemble
from semifed.engine.attack import SENT, Hostile
from semifed.engine.chunks import Answer, Chunk, cut, pack_chunks, read_answers, that_can_be_sent, train_chunk
from semifed.engine.local import Clients, Outcome, Task, Workshop
from semifed.engine.pipes import receive, send
from semifed.engine.ray_workers import RayWorkers
from semifed.errors import RunError, SettingError
from semifed.experiment import Experiment


def open_clients(assembly: Assembly) -> Clients:
    """The clients of a run: in this process, over as many processes as the experiment asks for, or on Ray."""
    engine = assembly.experiment.engine
    clients: Clients
    if engine.name == "ray":
        clients = RayWorkers(assembly)
    elif engine.workers == 1:
        clients = InProcess(assembly.workshop, engine.chunk)
    else:
        clients = Workers(assembly)
    return Hostile(clients, assembly) if assembly.experiment.attack.kind in SENT else clients


class InProcess:
    """Chunks one after the other, in this process."""

    def __init__(self, workshop: Workshop, chunk: int) -> None:
        self._workshop, self._chunk = workshop, chunk

    def present(self, round: int) -> None:
        """Everybody is there."""

    def train(self, round: int, tasks: Sequence[Task]) -> list[Outcome]:
        """The outcome of every task, in the order of the tasks."""
        return [outcome for chunk in cut(tasks, self._chunk) for outcome in self._workshop.train(round, chunk)]

    def close(self) -> None:
        """Nothing to let go of."""


class Workers:
    """Chunks side by side, each in a process of its own, which does one at a time."""

    def __init__(self, assembly: Assembly) -> None:
        engine = assembly.experiment.engine
        self._chunk, self._device = engine.chunk, assembly.workshop.device
        start = _way_to_start(assembly)
        dataset = _share(assembly) if start == "spawn" else assembly.dataset
        context = multiprocessing.get_context(start)
        given = (assembly.experiment, dataset, assembly.scenario)
        self._processes: dict[Connection, BaseProcess] = {}
        if start == "spawn" and sys.platform != "win32":
            resource_tracker.ensure_running()  # it would do so later, and unblock Ctrl-C in passing
        try:
            with _deaf_children():
                for _ in range(engine.workers):
                    ours, theirs = context.Pipe()
                    process = context.Process(target=_work, args=(theirs, *given), daemon=True)  # type: ignore[attr-defined]
                    process.start()
                    theirs.close()
                    self._processes[ours] = process
        except BaseException:
            self.close()
            raise

    def present(self, round: int) -> None:
        """Everybody is there."""

    def train(self, round: int, tasks: Sequence[Task]) -> list[Outcome]:
        """The outcome of every task, in the order of the tasks."""
        try:
            answers = self._share_out(round, pack_chunks(tasks, self._chunk))
        except (EOFError, OSError):
            raise RunError(
                "engine.workers: a worker process died: out of memory, or a script that lacks "
                "`if __name__ == '__main__':`; lower engine.chunk or engine.workers and go on with --resume"
            ) from None
        return read_answers(answers, self._device)

    def _share_out(self, round: int, chunks: Sequence[Chunk]) -> list[Answer]:
        """The answer to every chunk: whoever is free takes the next one."""
        answers: dict[int, Answer] = {}
        free, busy = list(self._processes), dict[Connection, int]()
        while len(answers) < len(chunks):
            while free and len(answers) + len(busy) < len(chunks):
                place = len(answers) + len(busy)
                send(free[0], (round, chunks[place]))
                busy[free.pop(0)] = place
            ready = wait(list(busy))
            for worker in [one for one in busy if one in ready]:
                answers[busy.pop(worker)] = receive(worker)
                free.append(worker)
        return [answers[place] for place in range(len(chunks))]

    def close(self) -> None:
        """End the processes, whatever they are doing: what they have not answered is not wanted any more."""
        for process in self._processes.values():
            process.kill()
        for ours, process in self._processes.items():
            process.join()
            ours.close()


def _way_to_start(assembly: Assembly) -> str:
    """A fork has everything at once, but only Linux does it well, and neither threads nor a GPU survive it."""
    engine, device = assembly.experiment.engine, assembly.workshop.device
    wanted, can_fork = engine.start, sys.platform == "linux" and device.type == "cpu" and engine.threads == 1
    if wanted == "fork" and not can_fork:
        raise SettingError(
            "engine.start: workers can be forked on Linux and the CPU only, and with engine.threads = 1; "
            'use "spawn" or "auto"'
        )
    return "fork" if can_fork and wanted != "spawn" else "spawn"


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


def _work(main: Connection, experiment: Experiment, dataset: Dataset, scenario: Scenario) -> None:
    """The life of a worker: put together what the run has, then train chunk after chunk until it is ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the main process's to handle
    threading.Thread(target=_end_with_main_process, daemon=True).start()
    torch.set_num_threads(experiment.engine.threads)
    workshop = assemble(experiment, dataset, scenario).workshop
    with suppress(EOFError, BrokenPipeError):  # the main process is gone
        while True:
            round, chunk = receive(main)
            try:
                answer: Any = train_chunk(workshop, round, chunk)
            except Exception as error:
                answer = that_can_be_sent(error, experiment)
            send(main, answer)


def _end_with_main_process() -> None:
    """A main process that is killed cannot end its workers, and they would wait for it for ever."""
    main = multiprocessing.parent_process()
    if main:
        main.join()
        os._exit(1)
