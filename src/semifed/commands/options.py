"""Options and arguments that several commands share, and how the shell completes them."""

from collections.abc import Iterable
from pathlib import Path

import click

from semifed.data.scenario import SCENARIOS
from semifed.data.sources import SOURCES
from semifed.experiment import Experiment
from semifed.methods import METHODS
from semifed.nets.zoo import NETS

_NAMES: dict[str, Iterable[str]] = {"method": METHODS, "data": SOURCES, "net": NETS, "scenario.partition": SCENARIOS}


def complete_assignment(text: str) -> list[str]:
    """Keys of an experiment that begin so, or after a = the names that there are."""
    key, sign, begun = text.partition("=")
    if sign:
        return [f"{key}={name}" for name in _NAMES.get(key, ()) if name.startswith(begun)]
    tables = Experiment().tables()
    flat = [f"{name}=" for name in tables if name not in ("method", "net") and not isinstance(tables[name], dict)]
    inner = [f"{name}.{one}=" for name, table in tables.items() if isinstance(table, dict) for one in table]
    return [key for key in ("method=", "net=", *flat, *inner) if key.startswith(text)]


def complete_method(text: str) -> list[str]:
    """Names of methods that begin so."""
    return [name for name in METHODS if name.startswith(text)]


data_dir = click.option(
    "--data-dir",
    type=click.Path(path_type=Path),
    envvar="SEMIFED_DATA",
    help="Where data files are (else SEMIFED_DATA, else ~/.cache/semifed).",
)
assignments = click.option(
    "--set",
    "assignments",
    multiple=True,
    metavar="KEY=VALUE",
    help="Change a setting, e.g. train.rounds=50.",
    shell_complete=lambda _context, _option, text: complete_assignment(text),
)
as_json = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
experiment = click.argument("experiment", required=False, type=click.Path(path_type=Path))
jobs = click.option("--jobs", type=click.IntRange(min=1), help="Runs at a time (else as many as there are cores).")
