"""semifed compare."""

import json
from collections.abc import Sequence
from pathlib import Path

import click

from semifed.commands import options
from semifed.errors import RunError, SettingError
from semifed.results.collection import StoredRun, collect, unsaid
from semifed.results.comparison import comparison_table, pair_table
from semifed.results.statistics import Comparison, find, pair_up
from semifed.results.statistics import compare as compare_runs
from semifed.results.tables import FORMATS
from semifed.terminal import print_table


@click.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--target", type=click.FloatRange(0, 100), help="Rounds and bytes to this accuracy in per cent.")
@click.option("--against", metavar="RUNS", help="Whom the others are tested against (else the first): label or method.")
@click.option("--model", help="Which model counts where runs have several, e.g. target (else the first).")
@click.option("--pairs", is_flag=True, help="The tests alone.")
@click.option(
    "--format", "form", default="text", show_default=True, type=click.Choice(FORMATS), help="How the table is written."
)
@options.as_json
def compare(
    runs: Sequence[Path],
    target: float | None,
    against: str | None,
    model: str | None,
    pairs: bool,
    form: str,
    as_json: bool,
) -> None:
    """Compare finished runs: means over seeds with intervals, and paired tests on equal seeds and splits.

    Give folders of runs and of sweeps; runs that differ in the seed alone are one line. CSV has the lines, with --pairs
    the tests.

    \b
    semifed compare sweeps/first --target 90
    semifed compare runs/a runs/b --format latex > table.tex
    """
    stored = collect(runs)
    found = compare_runs(stored, target, model)
    _say_what_counts(stored, found)
    if not found:
        raise RunError("compare: no run is finished yet; wait, or go on with them by --resume")
    if pairs and not as_json and len(found) == 1:
        raise SettingError(f"--pairs: {found[0].label} is the only line; give runs of another one to test it against")
    tests = pair_up(found, find(found, against))
    if as_json:
        answer = {"groups": [one.record() for one in found], "pairs": [pair.record() for pair in tests]}
        click.echo(json.dumps(answer, indent=2))
        return
    if not pairs:
        print_table(comparison_table(found, target), [one.record() for one in found], form)
        if tests and form in ("markdown", "latex"):
            click.echo()  # else the tables are one paragraph
    if pairs or (tests and form != "csv"):
        print_table(pair_table(tests), [pair.record() for pair in tests], form)


def _say_what_counts(stored: Sequence[StoredRun], found: Sequence[Comparison]) -> None:
    """What a reader of the table would not think of."""
    counted = [run for one in found for run in one.runs]
    notes = {
        "are not finished and left out": [run.name for run in stored if not run.done],
        "collapsed and ended early": [run.name for run in counted if run.status == "collapsed"],
        "are left out, as copies of others or without the model": [
            str(run.path) for run in stored if run.done and run not in counted
        ],
    }
    for what, names in notes.items():
        if names:
            click.echo(f"note: {len(names)} runs {what}: {', '.join(names)}", err=True)
    if keys := unsaid(counted):
        click.echo(f"note: the methods also differ in settings that no line says: {', '.join(keys)}", err=True)
