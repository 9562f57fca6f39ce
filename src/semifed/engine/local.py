"""The sampled clients on this machine: mapped over the cohort or one by one, in chunks, over worker processes.

All of these give the same numbers, because every draw depends on (seed, round, client) alone and a chunk
has the same size whoever trains it. Between mapped and one by one, and between chunk sizes, sums are
taken in another order: parameters then agree to about 1e-6 a round, not to the last bit.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from semifed import keys
from semifed.batch import Pool
from semifed.data.batches import Plan, Stream, Supply, When, plan
from semifed.data.partitions import Indices
from semifed.data.scenario import Scenario
from semifed.data.views import View
from semifed.engine.audit import hidden_score
from semifed.engine.step import Pace, Seen, State, Stepper
from semifed.methods.base import Method, Move, Terms
from semifed.nets.net import Net
from semifed.params import Params, Parts, at, expand_as, lay_out, pick, place, stack, tree_map, unstack
from semifed.training import Training


class Task(NamedTuple):
    """One client's turn: what it receives, what it has kept, and how often it has taken part with this visit."""

    client: int
    down: Parts
    kept: Parts
    visits: int


class Outcome(NamedTuple):
    """What one client's turn leaves behind."""

    up: Parts
    kept: Parts
    examples: int
    terms: dict[str, float]
    notes: dict[str, Any]
    audit: Mapping[str, float] = MappingProxyType({})  # what only a simulation knows of the labels that were given


class Absent(NamedTuple):
    """A client that was drawn for a round and gave no answer in time, or one that was no answer, and why."""

    reason: str
    refused: bool = False  # something came, but not what a client may send


class Reply(NamedTuple):
    """What reaches the server in a round: from whom, for which round, and the outcome, or why there is none."""

    client: int
    round: int
    outcome: Outcome | Absent


class Form(NamedTuple):
    """How steps are computed; it changes the order of sums and nothing else."""

    mapped: bool  # the clients of a chunk at once, or one by one
    channels_last: bool = False  # images and kernels in memory, which large convolutions are faster with

    @property
    def layout(self) -> torch.memory_format:
        """The order in memory."""
        return torch.channels_last if self.channels_last else torch.contiguous_format


class Clients(Protocol):
    """Whoever trains clients: this machine, its worker processes, or a network."""

    def present(self, round: int) -> Sequence[int] | None:
        """The clients that can be drawn for this round; None for all that the split gives anything to."""
        ...

    def train(self, round: int, tasks: Sequence[Task]) -> Sequence[Outcome | Absent | Reply]:
        """The outcome of every task, in the order of the tasks; or replies, in any order, as they came."""
        ...

    def close(self) -> None:
        """Let go of processes and connections."""
        ...


@runtime_checkable
class TestsAtSites(Protocol):
    """Clients that can test models on images of their own."""

    def test(self, round: int, models: Mapping[str, Params]) -> dict[str, Any]:
        """The mean score of each model over the images of all that have some; empty if nobody has."""
        ...


@dataclass(frozen=True, eq=False)
class Workshop:
    """Everything a trainee needs, and the loop over its steps."""

    net: Net
    method: Method
    scenario: Scenario
    images: Tensor
    labels: Tensor
    views: Mapping[str, View]
    training: Training
    server_training: Training
    seed: int
    rounds: int
    form: Form
    device: torch.device

    def train(self, round: int, tasks: Sequence[Task]) -> list[Outcome]:
        """Train a chunk of clients: together where the workshop maps, else one after the other."""
        tasks = [
            task._replace(down=place(task.down, self.device), kept=place(task.kept, self.device)) for task in tasks
        ]
        together = [tasks] if self.form.mapped else [[task] for task in tasks]
        return [outcome for group in together for outcome in self._train_group(round, group)]

    def steps_of(self, round: int, client: int) -> int:
        """How many steps a client's visit in a round takes."""
        return self._plan(Role(self.method.client(), self.method.reads(), self.training), round, client).steps

    def server_steps(self, round: int) -> int:
        """How many steps the server takes in a round."""
        supply = _supply(self.scenario.server.labelled, self.scenario.server.unlabelled, self.labels)
        moves = self.method.server()
        return plan(self.method.server_reads(), supply, self.server_training, round).steps if moves else 0

    def train_server(self, round: int, server: Parts) -> tuple[Parts, dict[str, float]]:
        """The server is one more trainee; where it holds nothing it has no steps."""
        role = Role(self.method.server(), self.method.server_reads(), self.server_training)
        supply = _supply(self.scenario.server.labelled, self.scenario.server.unlabelled, self.labels)
        visit = plan(role.pools, supply, role.training, keys.key(self.seed, "server", round))
        if not role.moves or not visit.steps:
            return server, {}
        when = When(round, self.rounds, [round + 1])
        parts, seen, _ = self._steps(self._server_steps, role.pools, [server], [visit], when)
        return (at(parts, 0) if self.form.mapped else parts), _at(seen.terms, 0)

    def train_trusted(self, round: int, task: Task) -> Parts:
        """What a client would send that holds the server's images with labels, read with and without these."""
        method, scenario = self.method, self.scenario
        role = Role(method.client(), method.reads(), self.training)
        index = scenario.server.labelled if len(scenario.server.labelled) else scenario.validation
        visit = plan(
            role.pools, _supply(index, index, self.labels), role.training, keys.key(self.seed, "trusted", round)
        )
        start, when = method.start(task.down, task.kept), When(round, self.rounds, [task.visits])
        alone = Stepper(self.net, role.moves, role.training, False, self._pace())
        parts, _, _ = self._steps(alone, role.pools, [start], [visit], when)
        return method.upload(self.net, parts, task.down)

    def settle(self, server: Parts) -> Parts:
        """The end of a round at the server, in sight of its labelled images."""
        if type(self.method).settle is Method.settle:
            return server
        index = torch.tensor(self.scenario.server.labelled)
        images = self.images[index.to(self.device)]
        return self.method.settle(self.net, server, self.views["clean"](images, index.to(self.device)))

    def _train_group(self, round: int, tasks: Sequence[Task]) -> list[Outcome]:
        method = self.method
        role = Role(method.client(), method.reads(), self.training)
        plans = [self._plan(role, round, task.client) for task in tasks]
        starts = [method.start(task.down, task.kept) for task in tasks]
        when = When(round, self.rounds, [task.visits for task in tasks])
        parts, seen, audit = self._steps(self._client_steps, role.pools, starts, plans, when)
        if self.form.mapped:
            up = torch.func.vmap(partial(method.upload, self.net))(parts, stack([task.down for task in tasks]))
            # What is kept is a copy: a view would hold on to the storage of the whole chunk.
            copies = tree_map(torch.clone, tuple(unstack(pick(parts, method.keeps), len(tasks))))
            ups, kept = unstack(up, len(tasks)), list(copies)
        else:
            ups, kept = [method.upload(self.net, parts, tasks[0].down)], [pick(parts, method.keeps)]
        return [
            Outcome(
                ups[place],
                kept[place],
                plans[place].examples,
                _at(seen.terms, place),
                _at(seen.notes, place),
                _at(audit, place),
            )
            for place in range(len(tasks))
        ]

    @cached_property
    def _client_steps(self) -> Stepper:
        """The steps of clients; one for all rounds, since a mapped one learns from those it has done."""
        return Stepper(self.net, self.method.client(), self.training, self.form.mapped, self._pace())

    @cached_property
    def _server_steps(self) -> Stepper:
        """Those of the server, which is mapped as a chunk of one where clients are: replayed steps are quicker."""
        return Stepper(self.net, self.method.server(), self.server_training, self.form.mapped, self._pace())

    def _pace(self) -> Pace | None:
        """The method's own pace, if it has one: most have none, and it costs time in every step."""
        return None if type(self.method).pace is Method.pace else self.method.pace

    def _plan(self, role: "Role", round: int, client: int) -> Plan:
        labelled, unlabelled = self.scenario.clients[client].labelled, self.scenario.unlabelled_at(client, round)
        if self.method.reveals:
            known = self.labels.numpy()[unlabelled] >= 0
            labelled, unlabelled = np.concatenate([labelled, unlabelled[known]]), unlabelled[:0]
        supply = _supply(labelled, unlabelled, self.labels)
        return plan(role.pools, supply, role.training, keys.key(self.seed, "visit", round, client))

    def _steps(
        self, stepper: Stepper, pools: Mapping[str, Pool], starts: Sequence[Parts], plans: Sequence[Plan], when: When
    ) -> tuple[Parts, Seen, Params]:
        """The parts after all steps, the mean of what was seen over a trainee's own steps, and its audit."""
        mapped, stream = stepper.mapped, Stream(plans, pools, self.images, self.views, when)
        layout = torch.channels_last if self.form.channels_last and not mapped else torch.contiguous_format
        # A new tensor object for every leaf, so that two parts never share a buffer that one of them moves.
        parts = tree_map(Tensor.detach, stack(starts) if mapped else lay_out(starts[0], layout))
        state, sums, guesses = State(parts, {}), Seen({}, {}, {}), list[Params]()
        dropout = torch.tensor([keys.key(visit.key, "dropout") for visit in plans], device=self.device)
        drawn = keys.fold(dropout, torch.arange(stream.steps)[:, None])
        for number in range(stream.steps):
            batch = stream.batch(number)
            step_keys, active = drawn[number], stream.active(number)
            if not mapped:
                batch, step_keys = lay_out(at(batch, 0), layout), step_keys[0]
            state, seen = stepper(state, batch, step_keys, active)
            guesses.append(seen.guesses)
            for total, now in zip(sums[:2], seen[:2], strict=True):
                for name, value in now.items():
                    own = value if mapped else value[None]
                    counted = own if active is None else torch.where(expand_as(active, own), own, 0)
                    total[name] = total[name] + counted if name in total else counted
        lengths = stream.lengths.clamp(min=1)
        means = tree_map(lambda total: total / expand_as(lengths, total), sums)
        return lay_out(state.parts, torch.contiguous_format), means, hidden_score(guesses, stream, self.labels)


class Role(NamedTuple):
    """What a trainee does, reads, and how it trains."""

    moves: Sequence[Move]
    pools: Mapping[str, Pool]
    training: Training


def _at(seen: Terms, place: int) -> dict[str, Any]:
    """One trainee's numbers: floats, and lists of them."""
    return {name: value[place].tolist() for name, value in seen.items()}


def _supply(labelled: Indices, unlabelled: Indices, labels: Tensor) -> Supply:
    own = torch.tensor(labelled)
    return Supply(own, labels[own], torch.tensor(unlabelled))
