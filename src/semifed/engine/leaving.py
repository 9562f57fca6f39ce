"""What leaves a client: found by letting one train a step and looking at what it would send."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from semifed import keys
from semifed.engine.assemble import Assembly, prepare
from semifed.engine.local import Outcome, Task
from semifed.engine.rounds import begin
from semifed.errors import DataError
from semifed.experiment import Experiment, method_name
from semifed.methods.base import Visit
from semifed.params import Parts, flatten, layer
from semifed.payload import Partial, nbytes


class Layer(NamedTuple):
    """The tensors of one layer of a part that is sent."""

    part: str
    layer: str
    tensors: dict[str, list[int]]  # shapes by name
    numbers: int
    bytes: int
    partly: bool  # a client may withhold some of it; the bytes are those of all


@dataclass(frozen=True)
class Leaving:
    """What one visit puts on the wire and what it does not."""

    method: str
    net: str
    up: list[Layer]
    bytes: int
    counts: dict[str, str]
    down: dict[str, int]  # bytes by part
    stays: list[str]
    reveals: str
    privacy: str

    def plain(self) -> dict[str, Any]:
        """As values that JSON knows."""
        return {**vars(self), "up": [one._asdict() for one in self.up]}


def leaving(experiment: Experiment, data_dir: Path | str | None = None) -> Leaving:
    """What leaves a client of an experiment, with its method and its net."""
    short = experiment.replace("client.steps=1", "engine.workers=1", "engine.name=local", "engine.address=")
    assembly = prepare(short, None if data_dir is None else Path(data_dir))
    task, outcome = _visit(assembly)
    layers = list(_layers(outcome.up))
    return Leaving(
        method=method_name(type(experiment.method)),
        net=assembly.net.name,
        up=layers,
        bytes=sum(one.bytes for one in layers),
        counts=_counts(outcome) | _counts_of_sites(experiment),
        down={name: nbytes({name: part}) for name, part in task.down.items()},
        stays=["samples and their names", "labels", *(f"{name} (kept between visits)" for name in outcome.kept)],
        reveals=experiment.method.leaves,
        privacy=_privacy(experiment),
    )


def _visit(assembly: Assembly) -> tuple[Task, Outcome]:
    """The first client that holds anything trains for a step."""
    method, active = assembly.experiment.method, assembly.scenario.active()
    if not len(active):
        raise DataError("scenario: no client holds anything here, so none can show what it would send")
    client = int(active[0])
    down = method.download(begin(assembly).server, Visit(client, 0, 0))
    kept = method.enroll(assembly.net, down, keys.key(assembly.experiment.seed, "enroll", client))
    task = Task(client, down, kept, 1)
    return task, assembly.workshop.train(0, [task])[0]


def _layers(up: Parts) -> Iterator[Layer]:
    """Every layer of every part, in order."""
    for name, part in up.items():
        values = part.values if isinstance(part, Partial) else part
        masks = flatten(part.sent) if isinstance(part, Partial) else {}
        groups: dict[str, dict[str, Tensor]] = {}
        for path, tensor in (flatten(values) if isinstance(values, Mapping) else {"": values}).items():
            groups.setdefault(layer(path), {})[path] = tensor
        for own, tensors in groups.items():
            size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
            size += sum(math.ceil(masks[path].numel() / 8) for path in tensors if path in masks)
            shapes = {path: list(tensor.shape) for path, tensor in tensors.items()}
            numbers = sum(tensor.numel() for tensor in tensors.values())
            yield Layer(name, own, shapes, numbers, size, bool(masks))


def _counts(outcome: Outcome) -> dict[str, str]:
    """The numbers that go beside the tensors, and what they say."""
    counts = {"examples": "how many different samples there were to read"}
    counts |= {f"terms.{name}": "mean of this loss over the visit" for name in outcome.terms}
    for name, value in outcome.notes.items():
        said = f"{len(value)} numbers" if isinstance(value, list) else "one number"
        counts[f"notes.{name}"] = f"{said}, mean over the visit{_note(name)}"
    return counts


def _counts_of_sites(experiment: Experiment) -> dict[str, str]:
    """What a site tells besides, in a federation."""
    counts = {"joining": "in a federation: how many labelled and unlabelled samples it holds, and versions"}
    if experiment.federation.site_test:
        counts["tested"] = "in a federation: the model's scores on the site's own test samples, and how many these are"
    return counts


def _note(name: str) -> str:
    known = {
        "coverage": ": the share of unlabelled rows that got a label",
        "classes": ": the share of unlabelled rows taken for each class",
        "agreement": ": how often two views get the same class",
    }
    return known.get(name, "")


def _privacy(experiment: Experiment) -> str:
    settings, why = experiment.privacy, experiment.method.not_private
    if settings.on:
        return f"on: the server cuts updates to {settings.clip:g} and adds noise to their mean; the counts have none"
    return f"off, and does not apply: {why}" if why else "off: set privacy.clip to switch it on"
