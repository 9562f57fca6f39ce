"""A run from start to end: put together, trained round by round, recorded, and stopped so that it can go on."""

import dataclasses
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from semifed.data.scenario import Scenario
from semifed.engine.assemble import Assembly, prepare
from semifed.engine.blame import blaming
from semifed.engine.calibrate import calibrated
from semifed.engine.environment import environment
from semifed.engine.health import collapsed
from semifed.engine.local import Clients
from semifed.engine.resuming import (
    about_versions,
    changes,
    check_fits,
    check_same_content,
    in_same_form,
    other_versions,
)
from semifed.engine.rounds import Progress, begin, run_rounds
from semifed.engine.threads import threads
from semifed.engine.workers import open_clients
from semifed.errors import RunError, SemifedError, SettingError
from semifed.experiment import Experiment
from semifed.results.folder import RunFolder, check_free, is_begun
from semifed.results.holdings import count
from semifed.results.keep import rounds_of
from semifed.results.record import Record, Row, summarise


class Event(NamedTuple):
    """Where a run is: heard once before its first round and after each."""

    assembly: Assembly
    rows: Sequence[Row]


Watch = Callable[[Event], None]


class _Way(NamedTuple):
    """Who trains the clients of a run, and who hears of it."""

    clients: Callable[[Assembly], Clients]
    watch: Watch | None


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
    clients: Callable[[Assembly], Clients] = open_clients,
) -> Record:
    """Run an experiment; with `out` everything is kept in that folder, and `resume` goes on with what is there.

    `watch` hears of the start and of every finished round. `override` lets a changed experiment go on,
    `previous` starts from the checkpoint before the newest one, `split` is used instead of a new one. `clients`
    opens whoever trains them: this machine, if nothing else is said.
    """
    way = _Way(clients, watch)
    path, data_path = None if out is None else Path(out), None if data_dir is None else Path(data_dir)
    if (override or previous) and not resume:
        raise SettingError(f"--{'override' if override else 'previous'}: goes with --resume only; add it")
    if resume and path is None:
        raise SettingError("--resume: say which run with --out DIR")
    if resume and path and is_begun(path):
        with RunFolder.reopen(path) as folder:
            return _go_on(folder, experiment, split, data_path, way, override=override, previous=previous)
    if path:
        check_free(path, leftover=resume)
    if experiment is None:
        raise SettingError("run: there is nothing to go on with yet; give an experiment")
    with blaming(experiment), threads(experiment.engine.threads):
        assembly, seconds = calibrated(prepare(experiment, data_path, split))
        experiment = assembly.experiment
        if path is None:
            return _run(assembly, begin(assembly), [], None, way)
        with RunFolder.create(path, leftover=resume) as folder:
            with _undisturbed():
                progress = begin(assembly, folder.kept(experiment))
                facts = {**environment(assembly), "calibration": seconds}
                folder.begin(experiment, assembly.scenario, facts, count(assembly.scenario, assembly.dataset))
                folder.save(0, progress.state(), experiment)
            folder.check_space()
            return _run(assembly, progress, [], folder, way)


def _go_on(
    folder: RunFolder,
    experiment: Experiment | None,
    split: Scenario | None,
    data_dir: Path | None,
    way: _Way,
    *,
    override: bool,
    previous: bool,
) -> Record:
    """The rest of the run in a folder; nothing there is touched before all has been checked."""
    scenario = folder.split()
    if split and split.digest() != scenario.digest():
        raise SettingError(f"--split: the run in {folder.path} has another split; leave it out")
    there = folder.load(scenario, previous)
    experiment = in_same_form(experiment, folder) if experiment else _experiment_in(folder)
    changed = changes(there.experiment if there else folder.experiment(), experiment, override)
    with blaming(experiment), threads(experiment.engine.threads):
        assembly = prepare(experiment, data_dir, scenario)
        check_same_content(folder, assembly)
        versions = other_versions(folder)
        assembly = dataclasses.replace(assembly, notes=(*assembly.notes, *about_versions(folder, versions)))
        progress = begin(assembly, folder.kept(experiment))
        if there:
            state = there.state
            kept = folder.kept(experiment, state.get("kept", {}))
            found = Progress(there.round, state.get("server", {}), kept, state["visits"])
            check_fits(found, progress, assembly, bool(rounds_of(state)))
            progress = found
        with _undisturbed():
            if there:
                folder.rewind(there)
            folder.note_versions(progress.round, versions)
            if changed:
                folder.override(experiment, progress.round, changed)
            if changed or not there:
                folder.save(progress.round, progress.state(), experiment)
        return _run(assembly, progress, there.rows() if there else [], folder, way)


def _experiment_in(folder: RunFolder) -> Experiment:
    try:
        return Experiment.of(folder.experiment())
    except SettingError as error:
        raise RunError(
            f"{folder.path / 'experiment.toml'}: {error}; a run of your own data, net or method goes on from Python: "
            "run(experiment, out, resume=True)"
        ) from None


class _Ledger:
    """What a run has come to, in memory and in its folder; the folder first, so that it is never behind."""

    def __init__(self, assembly: Assembly, progress: Progress, rows: list[Row], folder: RunFolder | None) -> None:
        self.rows, self._assembly, self._progress, self._folder = rows, assembly, progress, folder
        self._saved, self._thread = progress.round, ThreadPoolExecutor(1, "checkpoint")
        self._writing: Future[None] | None = None

    def add(self, row: Row, progress: Progress) -> None:
        """One more round."""
        train = self._assembly.experiment.train
        with _undisturbed():
            if self._folder:
                self._folder.add_row(row)
            self.rows.append(row)
            self._progress = progress
            if progress.round % train.checkpoint_every == 0 or progress.round == train.rounds:
                self._save()

    def _save(self) -> None:
        """Write a checkpoint beside the next round, which changes nothing of what is being written."""
        if self._folder and self._saved < self._progress.round:
            self._wait()
            round, state = self._progress.round, self._progress.state()
            self._writing = self._thread.submit(self._folder.save, round, state, self._assembly.experiment)
            self._saved = round

    def _wait(self) -> None:
        """Until the last checkpoint is written; what went wrong with it is raised here."""
        writing, self._writing = self._writing, None
        if writing:
            writing.result()

    def close(self, status: str) -> Record:
        """The record of the run up to here."""
        self._save()
        self._wait()
        self._thread.shutdown()
        model = next(iter(self._assembly.experiment.method.models(self._progress.server).values()), {})
        rows = self.rows[: self._progress.round]
        summary = summarise(rows, model, status)
        if self._folder:
            self._folder.sum_up(summary, model)
        return Record(rows, summary, model, self._folder.path if self._folder else None)


def _run(assembly: Assembly, progress: Progress, rows: list[Row], folder: RunFolder | None, way: _Way) -> Record:
    """The rounds that are left, and the record of all."""
    ledger = _Ledger(assembly, progress, rows, folder)

    patience = assembly.experiment.train.stop_on_collapse

    def done(row: Row, now: Progress) -> bool:
        ledger.add(row, now)
        if way.watch:
            way.watch(Event(assembly, ledger.rows))
        if stopped():
            raise KeyboardInterrupt
        return collapsed(ledger.rows, patience)

    try:
        if folder and progress.round < assembly.experiment.train.rounds:
            folder.mark_running()
        if way.watch:
            way.watch(Event(assembly, rows))
        if not collapsed(rows, patience):
            with _heard() as stopped, closing(way.clients(assembly)) as clients:
                run_rounds(assembly, clients, progress, done)
    except KeyboardInterrupt:
        ledger.close("stopped")
        raise
    except Exception as error:
        try:
            ledger.close("failed")
        except SemifedError as another:  # it must not hide the cause
            error.add_note(str(another))
        raise
    return ledger.close("collapsed" if collapsed(ledger.rows, patience) else "finished")


@contextmanager
def _heard() -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C came. It ends what is within at once, unless a destructor or a callback on its way swallows it."""
    came, usual = False, signal.getsignal(signal.SIGINT)

    def hear(number: int, frame: FrameType | None) -> None:
        nonlocal came
        came = True
        if callable(usual):
            usual(number, frame)

    with _hearing(hear):
        yield lambda: came


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Hold back Ctrl-C until a round is written; a second one ends at once."""
    waiting = False

    def wait(number: int, frame: FrameType | None) -> None:
        nonlocal waiting
        if waiting:
            signal.default_int_handler(number, frame)
        waiting = True

    with _hearing(wait):
        yield
    if waiting:
        raise KeyboardInterrupt


@contextmanager
def _hearing(hear: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Have Ctrl-C come here meanwhile, if it comes at all: it may be ignored, and arrives in the main thread only."""
    main = threading.current_thread() is threading.main_thread()
    if not main or not callable(signal.getsignal(signal.SIGINT)):
        yield
        return
    before = signal.signal(signal.SIGINT, hear)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
