"""semifed doctor: a look at data before anything is trained on them."""

import dataclasses
from pathlib import Path
from typing import Any

import torch

from semifed.data import own
from semifed.data.file_settings import FileSettings, kind_of, short_name
from semifed.data.folders import Problem, survey
from semifed.data.raw import Raw
from semifed.data.sources import Dataset
from semifed.doctor.budget import on_budget
from semifed.doctor.exchange import sends
from semifed.doctor.files import Seen, look_at_files
from semifed.doctor.report import Finding, Report, gather
from semifed.doctor.samples import look_at_samples
from semifed.engine.assemble import load_data, prepare
from semifed.engine.notices import notices
from semifed.errors import DataError, SemifedError
from semifed.experiment import Experiment

__all__ = ["Finding", "Report", "examine"]


def examine(experiment: Experiment, data_dir: Path | None = None) -> Report:
    """Look at the data of an experiment, and at what a run of it would do with them; nothing is trained or sent."""
    seen = _look(experiment, data_dir)
    problems, raw = list(seen.problems), seen.raw
    told: dict[str, Any] = {}
    notes: list[str] = []
    words: tuple[str, ...] = ("There is nothing that could be read.",)
    if raw is not None:
        problems += look_at_samples(raw, one_of_many=bool(experiment.files.classes))
        words = on_budget(raw, experiment.scenario.labels)
        if not any(problem.level == "error" for problem in problems):
            told, notes, refusals = _try(experiment, data_dir, raw)
            problems += refusals
    name = experiment.data if isinstance(experiment.data, str) else experiment.data.name
    facts = seen.facts | (_facts(raw) if raw is not None else {}) | ({"of note": notes} if notes else {})
    return Report(name, facts, _table(raw) if raw is not None else {}, gather(problems), told, words)


def _look(experiment: Experiment, data_dir: Path | None) -> Seen:
    """Everything that can be read, and why the rest cannot."""
    data, files = experiment.data, experiment.files
    try:
        if isinstance(data, str) and kind_of(data) == "folder":
            place = own.find(data.partition(":")[2].strip(), data_dir)
            return look_at_files(survey(place, files), files)
        if isinstance(data, str) and kind_of(data):
            raw = own.read(data, data_dir, files, skip_corrupt=True)
            left_out = [note for note in raw.notes if "left out" in note]
            return Seen(raw, [Problem("corrupt file", note, "") for note in left_out], {})
        return Seen(_as_raw(load_data(experiment, data_dir)), [], {})
    except DataError as error:
        return Seen(None, [Problem("cannot be read", str(error), "")], {})


def _as_raw(dataset: Dataset) -> Raw:
    test = torch.arange(len(dataset.labels)) >= dataset.train
    return Raw(dataset.images, dataset.labels, test, dataset.classes, dataset.names)


def _try(experiment: Experiment, data_dir: Path | None, raw: Raw) -> tuple[dict[str, Any], list[str], list[Problem]]:
    """Put the run together as if it were to start: what it would send, and what it would say first."""
    data, named = experiment.data, bool(experiment.files.classes)
    try:
        if isinstance(data, str) and kind_of(data):
            dataset = own.as_dataset(short_name(data), raw, experiment.files)
            experiment = dataclasses.replace(experiment, data=dataset, files=FileSettings())
        assembly = prepare(experiment, data_dir)
    except SemifedError as error:
        if isinstance(error, DataError) and named and _lacks_classes(raw):
            return {}, [], [Problem("a run of this site alone would be refused", str(error), "", "warning")]
        return {}, [], [Problem("a run would be refused", str(error), "")]
    return sends(assembly), notices(assembly), []


def _lacks_classes(raw: Raw) -> bool:
    """Whether a class that was named has no labelled sample here, as may be at one site of many."""
    return len(set(raw.labels[raw.labels >= 0].tolist())) < len(raw.classes)


def _facts(raw: Raw) -> dict[str, Any]:
    train, labelled = ~raw.test, raw.labels >= 0
    facts: dict[str, Any] = {
        "samples": len(raw.labels),
        "training, labelled": int((train & labelled).sum()),
        "training, unlabelled": int((train & ~labelled).sum()),
        "test": int(raw.test.sum()),
        "shape": "x".join(map(str, raw.images.shape[1:])),
    }
    if raw.images.dim() == 4:
        pixels = raw.images[train].transpose(0, 1).flatten(1)[:, ::7].float() / 255  # a seventh says it well enough
        facts["mean"] = [round(value, 3) for value in pixels.mean(1).tolist()]
        facts["std"] = [round(value, 3) for value in pixels.std(1).tolist()]
    return facts


def _table(raw: Raw) -> dict[str, dict[str, int]]:
    """How many labelled and test samples each class has."""
    return {
        name: {
            "labelled": int((~raw.test & (raw.labels == number)).sum()),
            "test": int((raw.test & (raw.labels == number)).sum()),
        }
        for number, name in enumerate(raw.classes)
    }
