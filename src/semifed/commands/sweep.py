"""semifed sweep."""

import json
import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import click
from rich.console import Console

from semifed.commands import options
from semifed.commands.plan import show
from semifed.errors import SettingError, StoppedError
from semifed.experiment import Experiment
from semifed.results.collection import StoredRun
from semifed.sweeps import folder
from semifed.sweeps.grid import Axis, Point, axis, points
from semifed.sweeps.sweep import default_jobs, run_points, unfinished
from semifed.sweeps.view import SweepWatcher
from semifed.terminal import score_table, standard_output


@click.command()
@options.experiment
@click.option("--over", multiple=True, metavar="KEY=VALUES", help="Vary a setting: seed=0..2, method=fedavg+,fedcon.")
@options.assignments
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder of the sweep.")
@options.jobs
@click.option("--dry-run", is_flag=True, help="Print the runs and what they will take, and run none.")
@click.option("--quiet", is_flag=True, help="Show nothing but the result.")
@options.data_dir
@options.as_json
def sweep(
    experiment: Path | None,
    over: Sequence[str],
    assignments: Sequence[str],
    out: Path,
    jobs: int | None,
    dry_run: bool,
    quiet: bool,
    data_dir: Path | None,
    as_json: bool,
) -> None:
    """Run an experiment for every combination of some settings, several runs at a time.

    What is finished is not repeated and what was killed goes on, so the same command again completes a sweep; with
    --out alone it is the sweep that is there.

    \b
    semifed sweep exp.toml --over seed=0..2 --over method=fedavg+,fedcon --out sweeps/first
    semifed sweep --out sweeps/first
    """
    given, over_axes = _points(experiment, over, assignments, out)
    if dry_run:
        left = unfinished(given, out)
        if len(left) < len(given) and not as_json:
            click.echo(f"{len(given) - len(left)} of {len(given)} runs are finished")
        if left or as_json:
            show(left, jobs or default_jobs(left), data_dir, as_json)
        return
    runs = run_watched(given, out, over_axes, jobs, data_dir, quiet)
    if as_json:
        click.echo(json.dumps([{"name": run.name, "folder": str(run.path), **run.summary} for run in runs], indent=2))
    else:
        standard_output().print(score_table([(run.name, run.summary) for run in runs]))
        click.echo(f"everything is in {out}")


def _points(
    experiment: Path | None, over: Sequence[str], assignments: Sequence[str], out: Path
) -> tuple[list[Point], list[Axis]]:
    over_axes = [axis(text) for text in over]
    if experiment or over or assignments:
        if not over:
            raise SettingError("--over: say what is varied, such as --over seed=0..2; one run alone is `semifed run`")
        return points(partial(Experiment.read, experiment), over_axes, assignments), over_axes
    return folder.recorded(out), []


def run_watched(
    given: Sequence[Point], out: Path, over: Sequence[Axis], jobs: int | None, data_dir: Path | None, quiet: bool
) -> list[StoredRun]:
    """Run a sweep before the eyes of a person."""
    watcher = SweepWatcher(Console(stderr=True), quiet)
    try:
        return run_points(given, out, over, jobs=jobs, data_dir=data_dir, watch=watcher)
    except KeyboardInterrupt:
        watcher.close()
        again = shlex.join(
            ["semifed", "sweep", "--out", str(out), *(["--data-dir", str(data_dir)] if data_dir else [])]
        )
        raise StoppedError(f"stopped; go on with: {again}") from None
    finally:
        watcher.close()
