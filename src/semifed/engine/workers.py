"""Worker processes: each holds the same workshop and trains whole chunks, so the numbers are those of one process.

The images lie in memory once, shared. Tasks and outcomes travel as payload bytes, as they would over a network.
"""

import dataclasses
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
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
from semifed.engine.local import Clients, Outcome, Task, Workshop
from semifed.errors import RunError, SemifedError, SettingError
from semifed.experiment import Experiment
from semifed.params import Parts, place
from semifed.payload import pack, unpack

_Chunk = list[tuple[int, bytes, bytes, int]]
_Answer = list[tuple[bytes, bytes, int, dict[str, float], dict[str, float]]]


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

    def present(self, round: int) -> None:
        """Everybody is there."""

    def train(self, round: int, tasks: Sequence[Task]) -> list[Outcome]:
        """The outcome of every task, in the order of the tasks."""
        return [outcome for chunk in _chunks(tasks, self._chunk) for outcome in self._workshop.train(round, chunk)]

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
            answers = self._share_out(round, chunks)
        except (EOFError, OSError):
            raise RunError(
                "engine.workers: a worker process died: out of memory, or a script that lacks "
                "`if __name__ == '__main__':`; lower engine.chunk or engine.workers and go on with --resume"
            ) from None
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        return [
            Outcome(place(unpack(up), self._device), unpack(kept), examples, terms, notes)
            for answer in answers
            for up, kept, examples, terms, notes in answer
        ]

    def _share_out(self, round: int, chunks: Sequence[_Chunk]) -> list[_Answer]:
        """The answer to every chunk: whoever is free takes the next one."""
        answers: dict[int, _Answer] = {}
        free, busy = list(self._processes), dict[Connection, int]()
        while len(answers) < len(chunks):
            while free and len(answers) + len(busy) < len(chunks):
                place = len(answers) + len(busy)
                free[0].send((round, chunks[place]))
                busy[free.pop(0)] = place
            ready = wait(list(busy))
            for worker in [one for one in busy if one in ready]:
                answers[busy.pop(worker)] = worker.recv()
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


def _work(main: Connection, experiment: Experiment, dataset: Dataset, scenario: Scenario) -> None:
    """The life of a worker: put together what the run has, then train chunk after chunk until it is ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the main process's to handle
    threading.Thread(target=_end_with_main_process, daemon=True).start()
    torch.set_num_threads(experiment.engine.threads)
    workshop = assemble(experiment, dataset, scenario).workshop
    with suppress(EOFError, BrokenPipeError):  # the main process is gone
        while True:
            round, chunk = main.recv()
            try:
                answer: Any = _train_chunk(workshop, round, chunk)
            except Exception as error:
                answer = _that_can_be_sent(error)
            main.send(answer)


def _that_can_be_sent(error: Exception) -> Exception:
    """An error in a form that another process can surely read: a user's own kind may not be."""
    if isinstance(error, SemifedError):
        return error
    return RuntimeError(f"in a worker process: {traceback.format_exc()}")


def _end_with_main_process() -> None:
    """A main process that is killed cannot end its workers, and they would wait for it for ever."""
    main = multiprocessing.parent_process()
    if main:
        main.join()
        os._exit(1)


def _train_chunk(workshop: Workshop, round: int, tasks: _Chunk) -> _Answer:
    distinct = {id(down): down for _, down, _, _ in tasks}
    received = {own: unpack(down) for own, down in distinct.items()}
    chunk = [Task(client, received[id(down)], unpack(kept), visits) for client, down, kept, visits in tasks]
    outcomes = workshop.train(round, chunk)
    return [(pack(one.up), pack(one.kept), one.examples, one.terms, one.notes) for one in outcomes]
