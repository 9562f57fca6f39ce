"""The data of one site: its own source, or its part of the split of an experiment, for rehearsals and tests."""

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from semifed import keys
from semifed.data import own as own_data
from semifed.data.partitions import Indices
from semifed.data.scenario import Holding, Scenario
from semifed.data.sources import Dataset
from semifed.engine.assemble import make_split
from semifed.errors import DataError, SettingError
from semifed.experiment import Experiment

_PART = re.compile(r"part:([^:]+):(\d+)/(\d+)")
_NOTHING = np.zeros(0, np.int64)


class TaskError(DataError):
    """Data that do not fit the server's task, which the server may hear: it says nothing of single files."""


class Place(NamedTuple):
    """What the server says of a site's place in the run."""

    client: int
    clients: int
    task: dict[str, Any]  # classes, shape, mean, std and flips of the images


class Own(NamedTuple):
    """What a site holds, as numbers of its own data set."""

    dataset: Dataset
    labelled: Indices
    unlabelled: Indices
    arrivals: Indices  # how many unlabelled samples arrive in each step


def task_of(dataset: Dataset) -> dict[str, Any]:
    """What a site must know of the server's data to prepare its own in the same way."""
    return {
        "classes": list(dataset.classes),
        "shape": list(dataset.images.shape[1:]),
        "mean": list(dataset.mean),
        "std": list(dataset.std),
        "flips": dataset.flips,
    }


def load(spec: str, experiment: Experiment, place: Place, data_dir: Path | None) -> tuple[Dataset, Scenario]:
    """A site's data set and the split that a workshop needs, in which all others hold nothing."""
    rehearsal = spec.startswith("part:")
    own = _part(spec, experiment, data_dir) if rehearsal else _source(spec, experiment, place.task, data_dir)
    dataset = _as_the_server_has_it(own.dataset, place.task)
    held_out, labelled = _hold_out(own.labelled, experiment, place.client)
    if not len(labelled) and not len(own.unlabelled):
        raise TaskError(f"--data {spec}: there is nothing to train on")
    holdings = [Holding(_NOTHING, _NOTHING)] * place.clients
    holdings[place.client] = Holding(labelled, own.unlabelled)
    arrivals = np.zeros((place.clients, len(own.arrivals)), np.int64)
    arrivals[place.client] = own.arrivals
    used = np.concatenate([labelled, own.unlabelled, held_out])
    scenario = Scenario(
        clients=tuple(holdings),
        server=Holding(_NOTHING, _NOTHING),
        validation=_NOTHING,
        test=held_out,
        unused=np.setdiff1d(np.arange(len(dataset.images)), used),
        arrival_sizes=arrivals,
        size=len(dataset.images),
        rounds_per_arrival=experiment.scenario.rounds_per_arrival,
        data="",
    )
    return dataset, scenario


def _part(spec: str, experiment: Experiment, data_dir: Path | None) -> Own:
    """Client K of the experiment's own split, as a simulation would have it."""
    match = _PART.fullmatch(spec)
    if not match:
        raise SettingError(f"--data {spec}: expected part:DATA:K/N, such as part:mnist5k:0/3")
    name, number, count = match[1], int(match[2]), int(match[3])
    if count != experiment.scenario.clients or number >= count:
        raise SettingError(
            f"--data {spec}: the experiment has {experiment.scenario.clients} clients, numbered from 0; "
            f"use part:{name}:K/{experiment.scenario.clients}"
        )
    dataset = own_data.load(name, data_dir, experiment.files)
    split = make_split(dataclasses.replace(experiment, data=dataset), dataset)
    mine = split.clients[number]
    chosen = np.concatenate([mine.labelled, mine.unlabelled])
    index = torch.tensor(chosen)
    own = dataclasses.replace(
        dataset, images=dataset.images[index].clone(), labels=dataset.labels[index].clone(), train=max(len(chosen), 1)
    )
    if not experiment.method.reveals:  # an unlabelled sample's label is not even in memory
        own.labels[len(mine.labelled) :] = -1
    cut = len(mine.labelled)
    return Own(own, np.arange(cut), np.arange(cut, len(chosen)), split.arrival_sizes[number])


def _source(spec: str, experiment: Experiment, task: dict[str, Any], data_dir: Path | None) -> Own:
    """All data of the site's own; where the server has the labels, those of the site are not used."""
    files = dataclasses.replace(experiment.files, classes=tuple(map(str, task["classes"])), test=0.0)
    if len(task["shape"]) == 3:
        files = dataclasses.replace(files, size=files.size or int(task["shape"][-1]))
    dataset = own_data.load(spec, data_dir, files, skip_corrupt=experiment.scenario.skip_corrupt)
    known = dataset.labels.numpy() >= 0
    if experiment.scenario.labels == "server":
        known = np.zeros_like(known)
    labelled, unlabelled = np.flatnonzero(known).astype(np.int64), np.flatnonzero(~known).astype(np.int64)
    sizes = np.array([len(part) for part in np.array_split(unlabelled, experiment.scenario.arrivals)], np.int64)
    return Own(dataset, labelled, unlabelled, sizes)


def _as_the_server_has_it(dataset: Dataset, task: dict[str, Any]) -> Dataset:
    """The data set with the server's classes and normalisation; what cannot be the same task is refused."""
    shape, classes = tuple(task["shape"]), tuple(map(str, task["classes"]))
    if tuple(dataset.images.shape[1:]) != shape:
        raise TaskError(
            f"{dataset.name}: images here are {_size(dataset.images.shape[1:])}, the server has {_size(shape)} "
            "(channels x height x width); bring them to that size"
        )
    strange = [name for name in dataset.classes if name not in classes]
    if strange:
        raise TaskError(f"{dataset.name}: class {strange[0]!r} is not one of the server's: {', '.join(classes)}")
    places = torch.tensor([classes.index(name) for name in dataset.classes])
    labels = torch.where(dataset.labels >= 0, places[dataset.labels.clamp(min=0)], -1)
    return dataclasses.replace(
        dataset,
        labels=labels,
        classes=classes,
        mean=tuple(map(float, task["mean"])),
        std=tuple(map(float, task["std"])),
        flips=bool(task["flips"]),
    )


def _hold_out(labelled: Indices, experiment: Experiment, client: int) -> tuple[Indices, Indices]:
    """The share of the labelled samples that a site tests on, and the rest."""
    count = int(experiment.federation.site_test * len(labelled))
    if not count:
        return _NOTHING, labelled
    order = keys.permutation(keys.key(experiment.seed, "site test", client), len(labelled)).numpy()
    return np.sort(labelled[order[:count]]), np.sort(labelled[order[count:]])


def _size(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))
