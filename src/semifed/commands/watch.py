"""semifed watch."""

import json
from collections.abc import Sequence
from pathlib import Path

import click

from semifed.commands import options
from semifed.live import Watched, picture, watch_runs
from semifed.terminal import standard_output


@click.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--once", is_flag=True, help="Show how they stand and end.")
@click.option(
    "--every", type=click.FloatRange(0.1, 3600), default=1.0, show_default=True, help="Seconds between two looks."
)
@options.as_json
def watch(runs: Sequence[Path], once: bool, every: float, as_json: bool) -> None:
    """Watch runs and sweeps as they go: round, accuracy, time left, alarms. It ends when all of them have.

    Folders are only read, so it may run beside `semifed run` or `semifed sweep`, or on another machine that sees them.

    \b
    semifed watch sweeps/first
    semifed watch runs/a runs/b --once
    """
    if once or as_json:
        lines = Watched(runs).look()
        if as_json:
            click.echo(json.dumps([line.record() for line in lines], indent=2))
        else:
            standard_output().print(picture(lines))
        return
    watch_runs(runs, standard_output(), every)
