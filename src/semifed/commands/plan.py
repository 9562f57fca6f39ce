"""semifed plan, and the table that `semifed sweep --dry-run` shares with it."""

import json
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.progress import track

from semifed.commands import options
from semifed.experiment import Experiment
from semifed.planning import Forecast, plan_all, totals
from semifed.sweeps.grid import Point
from semifed.sweeps.view import duration
from semifed.terminal import standard_output, table


@click.command()
@options.experiment
@options.assignments
@options.data_dir
@options.as_json
def plan(experiment: Path | None, assignments: Sequence[str], data_dir: Path | None, as_json: bool) -> None:
    """Predict the time, memory and traffic of a run from a few timed steps on this machine.

    It holds for the machine as busy as it is now.

    \b
    semifed plan exp.toml --set method=fedsiam-d
    """
    show([Point("run", Experiment.read(experiment, assignments))], 1, data_dir, as_json)


def show(points: Sequence[Point], jobs: int, data_dir: Path | None, as_json: bool) -> None:
    """Predict runs and print what comes out."""
    console = Console(stderr=True)
    asked = [point.experiment for point in points]
    # A large net takes half a minute, and a table has twenty of them.
    shown = track(asked, "timing", console=console, transient=True, disable=not console.is_terminal)
    forecasts = plan_all(shown, data_dir)
    whole = totals(forecasts, jobs)
    if as_json:
        runs = [{"name": point.name, **one._asdict()} for point, one in zip(points, forecasts, strict=True)]
        click.echo(json.dumps({"runs": runs, "jobs": jobs, **whole}, indent=2))
        return
    rows = [[point.name, *_texts(one)] for point, one in zip(points, forecasts, strict=True)]
    columns = ["run", "rounds", "steps of clients", "time", "s a round", "memory", "MB down", "MB up"]
    standard_output().print(table(columns, rows))
    if len(points) > 1:
        at_once = f", {jobs} at a time" if jobs > 1 else ""
        traffic = f"{(whole['down'] + whole['up']) / 1e6:,.1f} MB sent"
        click.echo(
            f"{len(points)} runs{at_once}: {duration(whole['seconds'])}, {whole['memory'] / 2**20:,.0f} MiB, {traffic}"
        )


def _texts(one: Forecast) -> list[str]:
    least, most = one.up_range
    up = f"{one.up / 1e6:,.1f}" + ("" if least == most else f" ({least / 1e6:,.1f} to {most / 1e6:,.1f})")
    memory = f"{one.memory / 2**20:,.0f} MiB" if one.memory else "not known"
    pace = f"{one.seconds_a_round:.2f}"
    return [str(one.rounds), f"{one.steps:,}", duration(one.seconds), pace, memory, f"{one.down / 1e6:,.1f}", up]
