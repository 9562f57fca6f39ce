"""THE MAIN LOOP, the same for every method and every engine."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from semifed import keys
from semifed.engine import hostile
from semifed.engine.assemble import Assembly
from semifed.engine.gate import Gate, Turn, alike
from semifed.engine.health import Rates, alarms, odd_clients, silence
from semifed.engine.layers import by_layer, share_sent
from semifed.engine.local import Clients, Task, TestsAtSites
from semifed.engine.merge import Circle, merge
from semifed.engine.privacy import draw_private
from semifed.experiment import Experiment
from semifed.methods.base import Visit
from semifed.params import Parts, place
from semifed.payload import nbytes
from semifed.results.evaluate import Examiner
from semifed.results.keep import InMemory, Kept
from semifed.results.record import Row, strict


class Progress(NamedTuple):
    """Everything that a round starts from: resume it, and the run goes on as if it had never stopped."""

    round: int  # the next one
    server: Parts
    kept: Kept
    visits: torch.Tensor  # int64 [clients], how often each has taken part

    def state(self) -> Parts:
        """All but the round, as one tree for a checkpoint."""
        return {"server": self.server, "kept": self.kept.state(), "visits": self.visits}


def begin(assembly: Assembly, kept: Kept | None = None) -> Progress:
    """The progress before the first round; what clients keep stays in memory if nothing else is given."""
    experiment = assembly.experiment
    server = experiment.method.init(assembly.net, keys.key(experiment.seed, "init"))
    return Progress(0, server, kept or InMemory({}), torch.zeros(experiment.scenario.clients, dtype=torch.int64))


def run_rounds(
    assembly: Assembly, clients: Clients, progress: Progress, done: Callable[[Row, Progress], bool | None]
) -> Progress:
    """Run from where the progress is to the last round; `done` hears of every one, and says if that is enough."""
    experiment, method = assembly.experiment, assembly.experiment.method
    workshop = assembly.workshop
    gate = Gate(experiment.gate, method, assembly.net, experiment.privacy.on)
    examine = Examiner(assembly.net, *assembly.test_set(), workshop.views["clean"], workshop.form.channels_last)
    progress = progress._replace(server=place(progress.server, assembly.workshop.device))
    while progress.round < experiment.train.rounds:
        started = time.perf_counter()
        round, server, kept, visits = progress
        if not method.server_last:
            server, server_terms = assembly.workshop.train_server(round, server)
        cohort = draw_cohort(assembly, round, clients.present(round))
        slots = draw_slots(assembly, cohort, round)
        visits = visits.index_add(
            0, torch.tensor(cohort, dtype=torch.int64), torch.ones(len(cohort), dtype=torch.int64)
        )
        tasks = [_task(assembly, server, kept, visits, Visit(client, slots[client], round)) for client in cohort]
        passed = gate(round, tasks, clients.train(round, tasks))
        sound, sent = passed.sound, server
        server, merged = merge(assembly, server, passed, Circle(round, slots, visits))
        if method.server_last:
            server, server_terms = assembly.workshop.train_server(round, server)
        server = assembly.workshop.settle(server)
        kept = kept.after(round + 1, {turn.task.client: turn.outcome.kept for turn in sound if turn.outcome.kept})
        progress = Progress(round + 1, server, kept, visits)
        tested = experiment.train.tests_after(progress.round)
        row: Row = {
            "round": progress.round,
            "models": _scores(assembly, examine, sent, server, sound) if tested else {},
            **_seen_by(experiment, [turn for turn in sound if turn.outcome.examples]),
            "server_terms": server_terms,
            "bytes": {
                "down": sum(nbytes(task.down) for task in tasks),
                "up": sum(nbytes(turn.outcome.up) for turn in sound),
            },
            "clients": cohort,
            **passed.told(),
            **merged,
            **hostile.told(experiment, assembly.scenario.active().tolist(), cohort),
            "seconds": time.perf_counter() - started,
        }
        if tested and isinstance(clients, TestsAtSites):
            row["sites"] = clients.test(round, method.models(server))
        if done(strict(row), progress):
            break
    return progress


def draw_cohort(assembly: Assembly, round: int, present: Sequence[int] | None = None) -> list[int]:
    """The clients of a round, drawn from those that are there and hold anything; the same for every method."""
    active, experiment = assembly.scenario.active() if present is None else sorted(present), assembly.experiment
    if experiment.privacy.on:
        return draw_private(experiment, round, [int(client) for client in active])
    order = keys.permutation(keys.key(experiment.seed, "cohort", round), len(active))
    return sorted(int(active[place]) for place in order[: experiment.train.clients_per_round])


def draw_slots(assembly: Assembly, cohort: Sequence[int], round: int) -> dict[int, int]:
    """The place of each client in the cohort, dealt anew each round: methods that form groups go by it."""
    order = keys.permutation(keys.key(assembly.experiment.seed, "slots", round), len(cohort))
    return dict(zip(cohort, order.tolist(), strict=True))


def _task(assembly: Assembly, server: Parts, kept: Kept, visits: torch.Tensor, visit: Visit) -> Task:
    method = assembly.experiment.method
    down = method.download(server, visit)
    own = kept.get(visit.client)
    if own is None:
        own = method.enroll(assembly.net, down, keys.key(assembly.experiment.seed, "enroll", visit.client))
    return Task(visit.client, down, own, int(visits[visit.client]))


def _scores(assembly: Assembly, examine: Examiner, sent: Parts, server: Parts, sound: Sequence[Turn]) -> dict[str, Any]:
    """The score of every model of the server, and the mean score of the clients' own where that is wanted."""
    method = assembly.experiment.method
    scores = {name: examine(model)._asdict() for name, model in method.models(server).items()}
    whole = [turn.outcome for turn in sound if turn.outcome.kept or not method.keeps]  # what a site keeps is not here
    own = [model for one in whole if (model := method.local_model(one.up, one.kept)) is not None]
    if assembly.experiment.train.test_clients and not own:
        own = [model for one in whole if (model := method.own_model(sent, one.up)) is not None]
    if own:
        scores["local"] = _mean([examine(model)._asdict() for model in own])
    return scores


def _mean(seen: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The mean over clients of each number, or of each list of numbers place by place."""
    return {name: np.mean([one[name] for one in seen], axis=0).tolist() for name in (seen[0] if seen else {})}


def _seen_by(experiment: Experiment, turns: Sequence[Turn]) -> dict[str, Any]:
    """What the clients that had something to read tell of it; a simulation knows more than they (`audit`)."""
    turns = alike(turns)
    busy = [turn.outcome for turn in turns]
    ups = [outcome.up for outcome in busy]
    notes, audit = _mean([outcome.notes for outcome in busy]), [outcome.audit for outcome in busy]
    rates = [
        Rates(turn.task.client, turn.outcome.notes["classes"], experiment.client.rows_seen(turn.outcome.examples))
        for turn in turns
        if "classes" in turn.outcome.notes
    ]
    return {
        "terms": _mean([outcome.terms for outcome in busy]),
        "notes": notes,
        "audit": _mean(audit) if all(audit) else {},
        "layers": by_layer(experiment.method, ups),
        "alarms": alarms(notes)
        + odd_clients(rates, experiment.gate.odd_classes)
        + silence(share_sent(experiment.method, ups)),
    }
