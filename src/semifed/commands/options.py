"""Options and arguments that several commands share."""

from pathlib import Path

import click

data_dir = click.option(
    "--data-dir",
    type=click.Path(path_type=Path),
    envvar="SEMIFED_DATA",
    help="Where data files are (else SEMIFED_DATA, else ~/.cache/semifed).",
)
assignments = click.option(
    "--set", "assignments", multiple=True, metavar="KEY=VALUE", help="Change a setting, e.g. train.rounds=50."
)
as_json = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
experiment = click.argument("experiment", required=False, type=click.Path(path_type=Path))
jobs = click.option("--jobs", type=int, help="Runs at a time (else as many as there are cores).")
