"""A run from start to end: put together, trained round by round, recorded, and stopped so that it can go on."""

import platform
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import numpy
import torch

from semifed import __version__
from semifed.data.scenario import Scenario
from semifed.engine.assemble import Assembly, prepare
from semifed.engine.notices import notices
from semifed.engine.rounds import Progress, begin, run_rounds
from semifed.engine.workers import open_clients
from semifed.errors import RunError, SettingError
from semifed.experiment import Experiment
from semifed.results.folder import RunFolder, difference
from semifed.results.record import Record, Row, summarise


class Event(NamedTuple):
    """Where a run is: heard once before its first round and after each."""

    assembly: Assembly
    rows: Sequence[Row]


Watch = Callable[[Event], None]

_MAY_CHANGE = ("engine.workers:",)
"""What may differ on resume without a word, because the numbers stay the same to the last bit."""


def run(
    experiment: Experiment | None = None,
    out: Path | str | None = None,
    *,
    resume: bool = False,
    override: bool = False,
    previous: bool = False,
    split: Scenario | None = None,
    data_dir: Path | str | None = None,
    watch: Watch | None = None,
) -> Record:
    """Run an experiment; with `out` everything is kept in that folder, and `resume` goes on with what is there.

    `watch` hears of the start and of every finished round. `override` lets a changed experiment go on,
    `previous` starts from the checkpoint before the newest one, `split` is used instead of a new one.
    """
    data_path = Path(data_dir) if data_dir else None
    if out is None:
        if experiment is None:
            raise SettingError("run: give an experiment, or the folder of a run to go on with")
        with _threads(experiment.engine.threads):
            return _run(prepare(experiment, data_path, split), None, watch)
    folder = RunFolder.reopen(Path(out)) if resume else RunFolder.create(Path(out))
    try:
        experiment = _settle(folder, experiment, override)
        with _threads(experiment.engine.threads):
            assembly = prepare(experiment, data_path, folder.split() if folder.begun else split)
            if not folder.begun:
                folder.begin(experiment, assembly.scenario, _environment(assembly))
            return _run(assembly, folder, watch, previous)
    finally:
        folder.close()


def _settle(folder: RunFolder, experiment: Experiment | None, override: bool) -> Experiment:
    """The experiment to run in a folder: the given one, or the one that is there; they must not differ."""
    if not folder.begun:
        if experiment is None:
            raise RunError(f"{folder.path}: there is no run to go on with; give its experiment too")
        return experiment
    there = folder.experiment()
    if experiment is None:
        return Experiment.of(there)
    changes = [change for change in difference(there, experiment.tables()) if not change.startswith(_MAY_CHANGE)]
    if changes and not override:
        raise SettingError(f"--resume: the experiment has changed ({'; '.join(changes)}); undo it or say --override")
    if changes:
        folder.overridden(experiment, "; ".join(changes))
    return experiment


def _standing(assembly: Assembly, folder: RunFolder | None, previous: bool) -> tuple[Progress, list[Row]]:
    """Where a run stands; one that has just begun gets its first checkpoint."""
    if folder is None:
        return begin(assembly), []
    if not folder.has_checkpoint and not folder.rows():
        folder.save(0, begin(assembly).state())
    round, state, rows = folder.load(previous)
    return Progress(round, state.get("server", {}), state.get("kept", {}), state["visits"]), rows


def _run(assembly: Assembly, folder: RunFolder | None, watch: Watch | None, previous: bool = False) -> Record:
    """The rounds that are left, and the record of all."""
    progress, rows = _standing(assembly, folder, previous)
    train = assembly.experiment.train
    saved = progress.round
    if watch:
        watch(Event(assembly, rows))

    def done(row: Row, now: Progress) -> None:
        nonlocal progress, saved
        with _undisturbed():
            rows.append(row)
            progress = now
            if folder:
                folder.add_row(row)
                if now.round % train.checkpoint_every == 0 or now.round == train.rounds:
                    folder.save(now.round, now.state())
                    saved = now.round
        if watch:
            watch(Event(assembly, rows))

    clients = open_clients(assembly)
    try:
        run_rounds(assembly, clients, progress, done)
    finally:
        clients.close()
        model = next(iter(assembly.experiment.method.models(progress.server).values()))
        summary = summarise(rows, train.rounds, model)
        if folder:
            if saved < progress.round:  # stopped between two checkpoints: nothing is lost
                folder.save(progress.round, progress.state())
            folder.sum_up(summary, model)
    return Record(rows, summary, model, folder.path if folder else None)


def _environment(assembly: Assembly) -> dict[str, Any]:
    engine = assembly.experiment.engine
    return {
        "semifed": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "platform": platform.platform(),
        "device": str(assembly.workshop.device),
        "mode": "mapped" if assembly.workshop.mapped else "single",
        "threads": engine.threads,
        "workers": engine.workers,
        "split": assembly.scenario.digest(),
        "parameters": assembly.net.size,
        "notices": notices(assembly),
        "command": sys.argv,
    }


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """As many torch threads as an experiment says, for as long as it runs."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Hold back Ctrl-C until a round is written; a second one ends at once."""
    waiting = False

    def wait(number: int, frame: FrameType | None) -> None:
        nonlocal waiting
        if waiting:
            signal.default_int_handler(number, frame)
        waiting = True

    try:
        before = signal.signal(signal.SIGINT, wait)
    except ValueError:  # not the main thread: Ctrl-C does not arrive here
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if waiting:
        raise KeyboardInterrupt
