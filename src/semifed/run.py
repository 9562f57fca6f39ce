"""A run from start to end: put together, trained round by round, recorded, and stopped so that it can go on."""

import platform
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import numpy
import torch

from semifed import __version__
from semifed.engine.assemble import Assembly, prepare
from semifed.engine.rounds import Progress, begin, run_rounds
from semifed.engine.workers import open_clients
from semifed.errors import RunError, SettingError
from semifed.experiment import Experiment
from semifed.results.folder import RunFolder, difference
from semifed.results.record import Record, Row, summarise

Watch = Callable[[Row], None]

_MAY_CHANGE = ("engine.workers:",)
"""What may differ on resume without a word, because the numbers stay the same to the last bit."""


def run(
    experiment: Experiment | None = None,
    out: Path | str | None = None,
    *,
    resume: bool = False,
    override: bool = False,
    previous: bool = False,
    data_dir: Path | str | None = None,
    watch: Watch | None = None,
) -> Record:
    """Run an experiment; with `out` everything is kept in that folder, and `resume` goes on with what is there.

    `watch` hears of every finished round. `override` lets a changed experiment go on, `previous` starts
    from the checkpoint before the newest one.
    """
    data_path = Path(data_dir) if data_dir else None
    if out is None:
        if experiment is None:
            raise SettingError("run: give an experiment, or the folder of a run to go on with")
        with _threads(experiment.engine.threads):
            return _run(prepare(experiment, data_path), None, None, watch)
    folder = RunFolder.reopen(Path(out)) if resume else RunFolder.create(Path(out))
    try:
        experiment = _settle(folder, experiment, override)
        with _threads(experiment.engine.threads):
            assembly = prepare(experiment, data_path)
            return _run(assembly, folder, _go_on(folder, assembly, previous), watch)
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


def _go_on(folder: RunFolder, assembly: Assembly, previous: bool) -> tuple[Progress, list[Row]]:
    """Where the run of a folder stands; one that has just begun gets its first checkpoint."""
    split = assembly.scenario.digest()
    if not folder.begun:
        folder.begin(assembly.experiment, _environment(assembly))
    elif folder.environment()["split"] != split:
        raise RunError(f"{folder.path}: its split ({folder.environment()['split'][:12]}) is not the one made now "
                       f"({split[:12]}); the data or the version changed")  # fmt: skip
    if not folder.has_checkpoint and not folder.rows():
        start = begin(assembly)
        folder.save(0, start.state())
    round, state, rows = folder.load(previous)
    return Progress(round, state.get("server", {}), state.get("kept", {}), state["visits"]), rows


def _run(
    assembly: Assembly, folder: RunFolder | None, standing: tuple[Progress, list[Row]] | None, watch: Watch | None
) -> Record:
    """The rounds that are left, and the record of all."""
    progress, rows = standing or (begin(assembly), [])
    every, rounds = assembly.experiment.train.checkpoint_every, assembly.experiment.train.rounds
    reached, saved = progress, progress.round

    def done(row: Row, now: Progress) -> None:
        nonlocal reached, saved
        with _undisturbed():
            rows.append(row)
            reached = now
            if folder:
                folder.add_row(row)
                if now.round % every == 0 or now.round == rounds:
                    folder.save(now.round, now.state())
                    saved = now.round
        if watch:
            watch(row)

    clients = open_clients(assembly)
    try:
        run_rounds(assembly, clients, progress, done)
    finally:
        clients.close()
        if folder and saved < reached.round:  # stopped between two checkpoints: nothing is lost
            folder.save(reached.round, reached.state())
    model = next(iter(assembly.experiment.method.models(reached.server).values()))
    summary = summarise(rows, rounds, model)
    if folder:
        folder.finish(summary, model)
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
