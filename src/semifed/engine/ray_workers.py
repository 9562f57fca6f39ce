"""engine.name = "ray": chunks of clients go to workers that Ray runs on this machine or on a cluster.

A worker is a Ray actor that puts the workshop together once and then trains whole chunks, so the numbers are those
of one process. Images and what goes down lie once in the object store; tasks and outcomes are payload bytes. A worker
that dies is replaced and its chunk trained again, which gives the same numbers, as every draw is keyed.
"""

import dataclasses
import importlib
import os
import platform
import sys
import warnings
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from semifed import __version__
from semifed.data.sources import Dataset
from semifed.engine import ray_session
from semifed.engine.assemble import Assembly, assemble
from semifed.engine.chunks import Answer, Chunk, pack_chunks, read_answers, that_can_be_sent, train_chunk
from semifed.engine.local import Outcome, Task
from semifed.errors import RunError, SettingError
from semifed.experiment import Experiment
from semifed.library import SWITCH
from semifed.nets import kernels

START_SECONDS = 300.0
"""So long a run waits for its first worker: a cluster may have to make room, or a node."""

LOSSES = 3
"""So many workers may die one after the other without an answer between them."""

_Given = tuple[Experiment, Mapping[str, Any], Any, str | None]


class RayWorkers:
    """Chunks side by side, each with a worker that Ray runs, which does one at a time."""

    def __init__(self, assembly: Assembly) -> None:
        engine = assembly.experiment.engine
        self._chunk, self._device, self._losses = engine.chunk, assembly.workshop.device, 0
        self._starting: dict[Any, Any] = {}  # what is to answer -> the worker
        self._free: list[Any] = []
        self._busy: dict[Any, tuple[Any, int]] = {}  # what is to answer -> the worker and the chunk's place
        self._session = ray_session.open_session(engine)
        try:
            self._given = _put(self._session.ray, assembly)
            self._make = _factory(self._session.ray, assembly.experiment)
            for _ in range(engine.workers):
                self._start()
        except BaseException:
            self.close()
            raise

    def present(self, round: int) -> None:
        """Everybody is there."""

    def train(self, round: int, tasks: Sequence[Task]) -> list[Outcome]:
        """The outcome of every task, in the order of the tasks."""
        answers = self._share_out(round, pack_chunks(tasks, self._chunk))
        return read_answers(answers, self._device)

    def close(self) -> None:
        """End the workers, whatever they are doing, and what this run has started of Ray."""
        workers = [*self._starting.values(), *self._free, *(worker for worker, _ in self._busy.values())]
        self._session.close(workers)

    def _start(self) -> None:
        worker = self._make()
        self._starting[worker.open.remote([self._given], sys.path)] = worker

    def _share_out(self, round: int, chunks: Sequence[Chunk]) -> list[Answer | Exception]:
        """The answer to every chunk: whoever is free takes the next one."""
        ray, answers = self._session.ray, dict[int, Answer | Exception]()
        distinct = {id(down): down for chunk in chunks for _, down, _, _ in chunk}
        lying = {own: ray.put(down) for own, down in distinct.items()}
        waiting = deque(range(len(chunks)))
        while len(answers) < len(chunks):
            while waiting and self._free:
                worker, place = self._free.pop(0), waiting.popleft()
                self._busy[worker.train.remote(round, *_hand_out(chunks[place], lying))] = worker, place
            for ref in self._wait():
                try:
                    said = ray.get(ref)
                except ray.exceptions.RayError as error:
                    if ref in self._busy:
                        waiting.appendleft(self._busy.pop(ref)[1])
                    self._starting.pop(ref, None)
                    self._replace(error)
                    continue
                if ref in self._starting:
                    _check_facts(said)
                    self._free.append(self._starting.pop(ref))
                else:
                    worker, place = self._busy.pop(ref)
                    answers[place], self._losses = said, 0
                    self._free.append(worker)
        return [answers[place] for place in range(len(chunks))]

    def _wait(self) -> list[Any]:
        """What has been answered; without anybody at work not for ever."""
        patience = None if self._busy else START_SECONDS
        done, _ = self._session.ray.wait([*self._busy, *self._starting], num_returns=1, timeout=patience)
        if not done:
            there = self._session.ray.cluster_resources()
            raise RunError(
                f"engine.workers: no worker has started within {START_SECONDS:.0f} s; Ray has {there.get('CPU', 0):g} "
                f"CPUs and {there.get('GPU', 0):g} GPUs, which others may be using; lower engine.threads or "
                "engine.workers, or wait, and go on with --resume"
            )
        return list(done)

    def _replace(self, error: Exception) -> None:
        """Another worker for one that is lost, unless they die in a row."""
        self._losses += 1
        if self._losses > LOSSES:
            raise RunError(
                f"engine.workers: {self._losses} workers on Ray have died one after the other "
                f"({ray_session.first_line(error)}): out of memory, or semifed with its extra ray is not installed on "
                "all nodes; lower engine.chunk or engine.workers and go on with --resume"
            ) from None
        self._start()


def _hand_out(chunk: Chunk, lying: Mapping[int, Any]) -> tuple[list[tuple[int, int, bytes, int]], list[Any]]:
    """A chunk with places in a list for what goes down, and that list, whose contents the worker fetches once."""
    distinct = list(dict.fromkeys(id(down) for _, down, _, _ in chunk))
    places = {own: place for place, own in enumerate(distinct)}
    slim = [(client, places[id(down)], kept, visits) for client, down, kept, visits in chunk]
    return slim, [lying[own] for own in distinct]


def _put(ray: Any, assembly: Assembly) -> Any:
    """What a worker is made of, in the object store; arrays lie there once a machine, and are read in place."""
    dataset = assembly.dataset
    fields = {one.name: getattr(dataset, one.name) for one in dataclasses.fields(dataset)}
    arrays = {name: value.numpy() if isinstance(value, torch.Tensor) else value for name, value in fields.items()}
    experiment = dataclasses.replace(assembly.experiment, data="synthetic")  # the data set goes by itself
    given: _Given = (experiment, arrays, assembly.scenario, os.environ.get(SWITCH))
    try:
        return ray.put(given)
    except Exception as error:  # whatever a user's own net or method does when it is packed
        raise SettingError(
            f"engine.name: the experiment cannot be sent to Ray ({ray_session.first_line(error)}); define your net and "
            'method at the top of a module, or set engine.name = "local"'
        ) from None


def _factory(ray: Any, experiment: Experiment) -> Any:
    """Makes a worker that gets as many CPUs as it has threads and, if there are any to be used, its share of GPUs."""
    engine = experiment.engine
    gpus = 0.0 if engine.device == "cpu" else ray.cluster_resources().get("GPU", 0.0)
    needs = {"num_cpus": engine.threads, "num_gpus": min(1.0, gpus / engine.workers)}
    return ray.remote(**needs, max_restarts=0)(Trainer).remote


def _check_facts(said: Any) -> None:
    """Look whether a worker has what this process has; other versions would give other numbers."""
    if isinstance(said, Exception):
        raise said
    for name, here in _facts().items():
        if said[name] != here:
            raise RunError(
                f"engine.address: the worker on {said['node']} has {name} {said[name]}, but it is {here} here; "
                "make them the same on all nodes" + (f", or set {SWITCH}=off" if name == "kernels" else "")
            )


def _facts() -> dict[str, str]:
    """What the numbers of a run depend on besides the experiment."""
    form = "torch" if kernels.status().startswith("torch") else "built"
    return {"semifed": __version__, "torch": torch.__version__, "kernels": form}


class Trainer:
    """A worker, which lives in a process of Ray's."""

    def open(self, given: Sequence[Any], paths: Sequence[str]) -> dict[str, str] | Exception:
        """Put together what the run has; says with what. A user's modules are looked for where the run found them."""
        sys.path.extend(path for path in paths if path not in sys.path)
        self._experiment: Experiment | None = None
        try:
            experiment, arrays, scenario, switch = _fetch(given[0])
            self._experiment = experiment
            if switch is not None:
                os.environ[SWITCH] = switch
            torch.set_num_threads(experiment.engine.threads)
            self._workshop = assemble(experiment, _dataset(arrays), scenario).workshop
            return {**_facts(), "node": platform.node()}
        except Exception as error:
            return that_can_be_sent(error, self._experiment)

    def train(self, round: int, slim: list[tuple[int, int, bytes, int]], refs: Sequence[Any]) -> Answer | Exception:
        """Train one chunk."""
        try:
            ray = importlib.import_module("ray")
            downs = ray.get(list(refs))
            chunk = [(client, downs[place], kept, visits) for client, place, kept, visits in slim]
            return train_chunk(self._workshop, round, chunk)
        except Exception as error:
            return that_can_be_sent(error, self._experiment)


def _fetch(given: Any) -> _Given:
    ray = importlib.import_module("ray")
    try:
        whole: _Given = ray.get(given)
    except ray.exceptions.RayError as error:
        raise RunError(
            f"engine.name: a worker on {platform.node()} cannot read the experiment "
            f"({ray_session.first_line(error)}); install your own method and net on all nodes"
        ) from None
    return whole


def _dataset(arrays: Mapping[str, Any]) -> Dataset:
    """The data set over arrays in the object store, which nobody may write to and nobody does."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        tensors = {name: torch.from_numpy(value) for name, value in arrays.items() if isinstance(value, np.ndarray)}
    whole: dict[str, Any] = {**arrays, **tensors}
    return Dataset(**whole)
