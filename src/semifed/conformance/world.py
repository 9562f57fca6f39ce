"""Tiny federations in which a method is questioned: few samples, small nets, every awkward case.

Sample 0 is held by nobody. Padding reads it, so a result that depends on sample 0 depends on padding.
"""

import contextlib
import copy
import dataclasses
import functools
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from semifed import keys
from semifed.conformance.compare import copied, difference
from semifed.data.partitions import Indices
from semifed.data.scenario import Holding, Scenario, ScenarioSettings
from semifed.data.sources import Dataset
from semifed.data.split import hash_labels
from semifed.data.views import ViewSettings
from semifed.engine.assemble import Assembly, assemble
from semifed.engine.local import Form, Outcome, Task, Workshop
from semifed.engine.rounds import Progress, begin, run_rounds
from semifed.experiment import Experiment, TrainSettings
from semifed.methods.base import Cohort, Method
from semifed.nets.net import Net
from semifed.nets.zoo import NetSettings, mlp
from semifed.params import Parts
from semifed.results.record import Row
from semifed.training import ClientTraining, ServerTraining

CLASSES, SIDE, ROUNDS = 3, 8, 50
HELD_OUT = 6
"""Samples of the validation set, and of the test set."""
SHAPE = (1, SIDE, SIDE)

MOMENTS = (0, 1, 9, 10, ROUNDS - 1)
"""The rounds in which a question is asked until it is answered: what sleeps at first must wake in one of them.

FedMatch, for one, may have helpers in every tenth round only.
"""

EVEN = {"client": [(8, 12)] * 3, "server": [(0, 12)] * 3}
UNEVEN = {"client": [(7, 13), (0, 11), (5, 0), (2, 6)], "server": [(0, 13), (0, 11), (0, 3), (0, 6)]}
"""(labelled, unlabelled) samples of each client, by where the labels are."""
AT_SERVER = {"client": (0, 0), "server": (10, 7)}


def _confident(module: nn.Module) -> nn.Module:
    """A net that is sure of itself from the start, so that thresholds on confidence are passed."""
    with torch.no_grad():
        module.get_parameter("head.weight").mul_(10)
    return module


def _normalised() -> nn.Module:
    """A net with batch normalisation and dropout: everything that rows of one batch may have to do with each other."""
    module = mlp(SHAPE, CLASSES, "batch")
    features = nn.Sequential(*module.get_submodule("features").children(), nn.Dropout(0.2))
    return _confident(nn.Sequential(OrderedDict(features=features, head=module.get_submodule("head"))))


NETS: dict[str, Callable[[], nn.Module]] = {
    "hesitant": lambda: mlp(SHAPE, CLASSES, "none"),
    "confident": lambda: _confident(mlp(SHAPE, CLASSES, "none")),
    "normalised": _normalised,
}


@dataclass(frozen=True, eq=False)
class World:
    """One federation: where its labels are, which net it trains, everything put together, and what was played in it."""

    labels: str
    net_name: str
    assembly: Assembly
    _played: list["Scene"] = field(default_factory=list)

    def __str__(self) -> str:
        return f"labels at the {self.labels}, {self.net_name} net"

    @property
    def workshop(self) -> Workshop:
        return self.assembly.workshop

    @property
    def method(self) -> Method:
        return self.assembly.experiment.method

    def scenes(self, count: int) -> Iterator["Scene"]:
        """The first so many of the moments, one after the other; what lies between them is skipped."""
        for place, round in enumerate(MOMENTS[:count]):
            if place == len(self._played):
                before = self._played[-1].after if self._played else begin(self.assembly)
                self._played.append(play(self, before._replace(round=round)))
            yield self._played[place]

    def changed(self, **fields: Any) -> "World":
        """The same world with another workshop: other images, another method, another engine."""
        workshop = dataclasses.replace(self.workshop, **fields)
        return World(self.labels, self.net_name, dataclasses.replace(self.assembly, workshop=workshop))

    def with_inverted(self, samples: Indices | Sequence[int]) -> "World":
        """The same world with other images for these samples."""
        images, index = self.workshop.images.clone(), torch.tensor(np.asarray(samples, np.int64))
        images[index] = 255 - images[index]
        return self.changed(images=images)

    def unlabelled(self) -> Indices:
        """Every sample that somebody holds without a label."""
        scenario = self.assembly.scenario
        return np.concatenate([holding.unlabelled for holding in (*scenario.clients, scenario.server)])


def worlds(
    method: Method, net: str = "normalised", *, even: bool = False, per_round: int | None = None, seed: int = 0
) -> list[World]:
    """A world for each place where the method allows labels."""
    return [_world(method, labels, net, even, per_round, seed) for labels in method.labels]


@functools.lru_cache(maxsize=8)  # most questions look at the same rounds
def _world(method: Method, labels: str, net_name: str, even: bool, per_round: int | None, seed: int) -> World:
    sizes = (EVEN if even else UNEVEN)[labels]
    dataset, scenario = _hand_out(sizes, AT_SERVER[labels])
    experiment = Experiment(
        seed=seed,
        data=dataset,
        method=method,
        net=NetSettings("mlp"),
        scenario=ScenarioSettings(
            labels="client" if labels == "client" else "server", clients=len(sizes), validation=HELD_OUT
        ),
        views=ViewSettings(shift=1, crop=1, cutout=2),
        train=TrainSettings(rounds=ROUNDS, clients_per_round=per_round or len(sizes)),
        client=ClientTraining(epochs=2, steps=3, batch=4, unlabelled_batch=4, lr=0.01, weight_decay=0.0),
        server=ServerTraining(epochs=1, steps=3, batch=4, unlabelled_batch=4, lr=0.01, weight_decay=0.0),
    )
    assembly = assemble(experiment, dataset, scenario)
    net = Net(NETS[net_name], SHAPE, net_name)
    workshop = dataclasses.replace(assembly.workshop, net=net, form=Form(mapped=False))
    return World(labels, net_name, dataclasses.replace(assembly, net=net, workshop=workshop))


def _hand_out(clients: Sequence[tuple[int, int]], server: tuple[int, int]) -> tuple[Dataset, Scenario]:
    """A data set of three bright corners under noise, dealt in order from sample 1 on."""
    held = sum(map(sum, (*clients, server)))
    train, size = 1 + held + HELD_OUT, 1 + held + 2 * HELD_OUT
    labels = torch.arange(size) % CLASSES
    noise = keys.integers(torch.arange(size), SIDE * SIDE, 0, 99).reshape(-1, *SHAPE)
    half = SIDE // 2
    bright = torch.zeros(CLASSES, *SHAPE, dtype=torch.int64)
    bright[0, 0, :half, :half] = bright[1, 0, :half, half:] = bright[2, 0, half:, :half] = 150
    images = (bright[labels] + noise).to(torch.uint8)
    dataset = Dataset("corners", images, labels, train, ("a", "b", "c"), (0.34,), (0.3,), flips=False)
    cuts = np.cumsum([size for pair in (*clients, server) for size in pair])
    pieces = np.split(np.arange(1, 1 + held), cuts[:-1])
    holdings = [Holding(*pieces[place : place + 2]) for place in range(0, len(pieces), 2)]
    scenario = Scenario(
        clients=tuple(holdings[:-1]),
        server=holdings[-1],
        validation=np.arange(1 + held, train),
        test=np.arange(train, size),
        unused=np.zeros(1, np.int64),
        arrival_sizes=np.array([[unlabelled] for _, unlabelled in clients]),
        size=size,
        rounds_per_arrival=1,
        data=hash_labels(labels.numpy()),
    )
    scenario.validate()
    return dataset, scenario


class DoesNotApply(Exception):  # noqa: N818  nothing is wrong
    """Raised by a question that has nothing to ask of a method; the message says why."""


class Merging(NamedTuple):
    """What the server was given to merge."""

    server: Parts
    up: Parts
    cohort: Cohort


class Scene(NamedTuple):
    """One round as it was played."""

    before: Progress
    tasks: list[Task]
    outcomes: list[Outcome]
    merging: Merging | None  # None if no client had anything to read
    after: Progress
    row: Row
    spoilt: list[str]  # what training and merging have written into, though it was only given to be read

    def turns(self) -> list[tuple[Task, Outcome]]:
        """Each client's task with its outcome."""
        return list(zip(self.tasks, self.outcomes, strict=True))

    def busy(self) -> list[int]:
        """The places in the cohort of the clients that had anything to read."""
        return [place for place, outcome in enumerate(self.outcomes) if outcome.examples]


class _RoundIsOver(Exception):  # noqa: N818  not an error
    """Ends the main loop after one round."""


class _Witness:
    """Clients on this machine, one by one, whose tasks and outcomes are remembered, and what the server merges."""

    def __init__(self, world: World) -> None:
        self._workshop, self._method = world.workshop, world.method
        self.tasks: list[Task] = []
        self.outcomes: list[Outcome] = []
        self.merging: Merging | None = None
        self.ends: list[tuple[Row, Progress]] = []
        self.spoilt: list[str] = []

    def present(self, round: int) -> None:
        """Everybody is there."""

    def train(self, round: int, tasks: Sequence[Task]) -> list[Outcome]:
        self.tasks = list(tasks)
        given = [copied({"down": task.down, "kept": task.kept}) for task in tasks]
        self.outcomes = self._workshop.train(round, tasks)
        for task, before in zip(tasks, given, strict=True):
            if found := difference(before, {"down": task.down, "kept": task.kept}):
                self.spoilt.append(f"client {task.client} writes into what it was given: {found}")
        return self.outcomes

    def close(self) -> None:
        """Nothing to let go of."""

    def merge(self, net: Net, server: Parts, up: Parts, cohort: Cohort) -> Parts:
        self.merging = Merging(server, up, cohort)
        before = copied({"server": server, "up": up})
        merged = self._method.aggregate(net, server, up, cohort)
        if found := difference(before, {"server": server, "up": up}):
            self.spoilt.append(f"merging writes into what it was given: {found}")
        return merged

    def end(self, row: Row, progress: Progress) -> None:
        self.ends.append((row, progress))
        raise _RoundIsOver


def play(world: World, before: Progress) -> Scene:
    """Play one round through the main loop."""
    witness, state, images = _Witness(world), copied(before.state()), world.workshop.images.clone()
    experiment = dataclasses.replace(world.assembly.experiment, method=twin(world.method, aggregate=witness.merge))
    with contextlib.suppress(_RoundIsOver):
        run_rounds(dataclasses.replace(world.assembly, experiment=experiment), witness, before, witness.end)
    row, after = witness.ends[0]
    if found := difference({**state, "images": images}, {**before.state(), "images": world.workshop.images}):
        witness.spoilt.append(f"a round writes into what it started from: {found}")
    return Scene(before, witness.tasks, witness.outcomes, witness.merging, after, row, witness.spoilt)


def twin(method: Method, **functions: Callable[..., Any]) -> Method:
    """A copy of a method with some of its functions replaced, to see what they are called with."""
    other = copy.copy(method)
    for name, function in functions.items():
        object.__setattr__(other, name, function)  # frozen, but a copy of our own
    return other


def moments(made: Sequence[World]) -> Iterator[list[tuple[World, Scene]]]:
    """All moments, in all worlds side by side."""
    for scenes in zip(*(world.scenes(len(MOMENTS)) for world in made), strict=True):
        yield list(zip(made, scenes, strict=True))


def train_server(world: World, progress: Progress) -> Parts:
    """The server's parts after its own steps, as the clients receive them."""
    return world.workshop.train_server(progress.round, progress.server)[0]


def as_tree(outcome: Outcome) -> Parts:
    """Everything that a client's turn leaves behind, as tensors; one that had nothing to read has no terms."""
    terms = {name: torch.tensor(value) for name, value in outcome.terms.items() if outcome.examples}
    notes = {name: torch.tensor(value) for name, value in outcome.notes.items() if outcome.examples}
    return {"term": terms, "note": notes, "up": outcome.up, "kept": outcome.kept}


def clean_test_images(world: World) -> Tensor:
    """Images as a model is tested on."""
    images = world.assembly.test_set()[0]
    return world.workshop.views["clean"](images, torch.zeros(len(images), dtype=torch.int64))
