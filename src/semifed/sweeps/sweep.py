"""A sweep: many runs in one folder, several at a time, each in a process of its own.

Runs that are finished are never repeated; those that were killed, stopped or failed go on from their checkpoints. So a
sweep that is killed and called again, however often, ends with the numbers of one that never was.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from semifed.errors import RunError, SemifedError, SettingError
from semifed.experiment import Experiment
from semifed.results.collection import RUNS, StoredRun, read_run
from semifed.results.folder import is_begun
from semifed.sweeps import folder as folders
from semifed.sweeps.grid import Axis, Point, axes, points
from semifed.sweeps.processes import RunProcess, ready
from semifed.sweeps.progress import FAILED, FINISHED, RUNNING, STOPPED, WAITING, SweepProgress

Watch = Callable[[SweepProgress], None]

_MOMENT, _GRACE = 0.5, 60.0  # seconds between two looks at the clock; what a run gets to write its checkpoint


def sweep(
    experiment: Experiment,
    over: Mapping[str, Iterable[Any]],
    out: Path | str,
    *,
    jobs: int | None = None,
    data_dir: Path | str | None = None,
    watch: Watch | None = None,
) -> list[StoredRun]:
    """Run an experiment for every combination of the settings in `over`, `jobs` at a time; what is done stays done.

    A run that fails does not end the others; a RunError names those that did when all the rest is done.
    """
    over_axes = axes(over)
    given = points(lambda assignments: experiment.replace(*assignments), over_axes)
    return run_points(given, out, over_axes, jobs=jobs, data_dir=data_dir, watch=watch)


def run_points(
    given: Sequence[Point],
    out: Path | str,
    over: Sequence[Axis] = (),
    *,
    jobs: int | None = None,
    data_dir: Path | str | None = None,
    watch: Watch | None = None,
) -> list[StoredRun]:
    """The same for any list of named experiments."""
    place = Path(out)
    count = jobs if jobs is not None else default_jobs(given)
    if count < 1:
        raise SettingError(f"--jobs: at least 1 run at a time, not {count}")
    with folders.taken(place):
        folders.record(place, given, over)
        progress = SweepProgress(place, {point.name: point.experiment.train.rounds for point in given}, count)
        waiting = [point for point in given if not _note_what_is_there(progress, place, point)]
        if watch:
            watch(progress)
        _run_all(progress, waiting, place, None if data_dir is None else Path(data_dir), watch)
    failed = {name: run.failure for name, run in progress.runs.items() if run.state == FAILED}
    if failed:
        first = next(iter(failed))
        others = f" (and {len(failed) - 1} more: {', '.join(list(failed)[1:])})" if len(failed) > 1 else ""
        raise RunError(f"{len(failed)} of {len(given)} runs failed: {first}: {failed[first]}{others}")
    return [read_run(place / RUNS / point.name) for point in given]


def unfinished(given: Sequence[Point], out: Path | str) -> list[Point]:
    """Those whose runs are not done in the folder of a sweep, which must be one that takes them."""
    folders.check(Path(out), given)
    folders_of = {point.name: Path(out) / RUNS / point.name for point in given}
    return [point for point in given if not (is_begun(at := folders_of[point.name]) and read_run(at).done)]


def default_jobs(given: Sequence[Point]) -> int:
    """As many as the cores allow, if each run has the threads it asks for."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    busy = max((point.experiment.engine.threads * point.experiment.engine.workers for point in given), default=1)
    return max(1, min(cores // busy, len(given)))


def _note_what_is_there(progress: SweepProgress, place: Path, point: Point) -> bool:
    """Whether nothing can be done for a run; how far it is goes into the progress."""
    folder = place / RUNS / point.name
    if not is_begun(folder):
        return False
    try:
        stored = read_run(folder)
    except SemifedError as error:  # a damaged run does not end the others
        progress.fail(point.name, str(error))
        return True
    score = next(iter(stored.summary["models"].values()), None)
    accuracy = score["last"]["accuracy"] if score else None
    seconds, rounds = stored.summary["seconds"], len(stored.rows)
    progress.note(point.name, FINISHED if stored.done else WAITING, rounds, accuracy, seconds / rounds if rounds else 0)
    return stored.done


def _run_all(
    progress: SweepProgress, waiting: list[Point], place: Path, data_dir: Path | None, watch: Watch | None
) -> None:
    """Keep `jobs` runs going until none is left."""
    going: dict[RunProcess, str] = {}
    try:
        while waiting or going:
            while waiting and len(going) < progress.jobs:
                point = waiting.pop(0)
                log = place / folders.LOGS / f"{point.name}.txt"
                process = RunProcess(point.experiment, place / RUNS / point.name, log, data_dir)
                going[process] = point.name
                progress.set_state(point.name, RUNNING)
            for process in ready(list(going), _MOMENT):
                _hear(progress, process, going)
            if watch:
                watch(progress)
    except BaseException:
        for process, name in going.items():
            progress.set_state(name, STOPPED)
            process.ask_to_stop()
        with suppress(KeyboardInterrupt):  # a second Ctrl-C ends them at once
            for process in going:
                process.join(_GRACE)
        raise
    finally:
        for process in going:
            process.close()


def _hear(progress: SweepProgress, process: RunProcess, going: dict[RunProcess, str]) -> None:
    """Take in what a run says; let go of it if that is its end."""
    name, heard = going[process], process.hear()
    if heard.failure is not None:
        progress.fail(name, heard.failure)
    else:
        pace = heard.seconds / heard.made if heard.made else None
        progress.note(name, FINISHED if heard.done else RUNNING, heard.rounds, heard.accuracy, pace)
    if heard.failure is not None or heard.done:
        del going[process]
        process.close(patience=_GRACE)
