"""semifed reproduce."""

import json
from collections.abc import Sequence
from pathlib import Path

import click

from semifed.commands import options
from semifed.commands.plan import show
from semifed.commands.sweep import run_watched
from semifed.errors import SettingError
from semifed.papers import ledger, presets
from semifed.papers.reproduce import fill, missing, of_cells, records, tally, text_table
from semifed.results.collection import StoredRun, collect
from semifed.results.tables import FORMATS
from semifed.sweeps.sweep import default_jobs, unfinished
from semifed.terminal import print_table, standard_output, table


@click.command()
@click.argument("name", required=False)
@click.option("--data", "dataset", multiple=True, help="Only cells of these data, e.g. mnist.")
@click.option("--setting", multiple=True, help="Only cells of these settings, e.g. iid or non-iid-i.")
@click.option("--gamma", multiple=True, help="Only cells of these shares of labels, e.g. 0.1.")
@click.option("--method", multiple=True, help="Only cells of these methods, by the paper's name, e.g. fedsiam-d.")
@click.option(
    "--labels", "scenario", multiple=True, type=click.Choice(["client", "server"]), help="Only cells with labels there."
)
@click.option("--seeds", default=3, show_default=True, type=click.IntRange(1), help="Seeds of each cell, from 0.")
@click.option("--scale", default=presets.PAPER_SCALE, show_default=True, help="The paper's, or a smaller one it has.")
@click.option("--run", "run_missing", is_flag=True, help="Run the asked cells that the ledger does not have.")
@click.option("--again", is_flag=True, help="With --run: also those that the ledger has.")
@click.option("--dry-run", is_flag=True, help="Print the runs of --run and what they will take, and run none.")
@click.option(
    "--out", type=click.Path(path_type=Path), help="Folder of the runs (else runs/reproduce/NAME, with the scale)."
)
@click.option("--record", is_flag=True, help="Take the finished runs of --out that fill a cell into the ledger.")
@click.option(
    "--ledger", "ledger_dir", type=click.Path(path_type=Path), help="Folder of the ledger (else the project's)."
)
@click.option(
    "--format", "form", default="text", show_default=True, type=click.Choice(FORMATS), help="How the table is written."
)
@options.jobs
@click.option("--quiet", is_flag=True, help="Show nothing but the result.")
@options.data_dir
@options.as_json
def reproduce(
    name: str | None,
    seeds: int,
    scale: str,
    run_missing: bool,
    again: bool,
    dry_run: bool,
    out: Path | None,
    record: bool,
    ledger_dir: Path | None,
    form: str,
    jobs: int | None,
    quiet: bool,
    data_dir: Path | None,
    as_json: bool,
    **wanted: Sequence[str],
) -> None:
    """Show a table or figure of a paper beside our results, and run what is missing; without a name, list them all.

    Ours is the mean over seeds of the round that the preset holds against the paper's number; last and best round stand
    beside it.

    \b
    semifed reproduce fedsiam/table5 --data mnist --gamma 0.1
    semifed reproduce fedsiam/table5 --data mnist --setting iid --method fedsiam-d --run --data-dir DATA
    """
    if name is None:
        _list()
        return
    if again and not run_missing:
        raise SettingError("--again: goes with --run only; add it")
    preset = presets.read(name, scale)
    cells = presets.chosen(preset, wanted)
    entries = ledger.read(ledger_dir, begins=record)
    place = out or Path("runs") / "reproduce" / preset.folder
    points = missing(cells, seeds, None if again else ledger.Book(entries)) if run_missing or dry_run else []
    if dry_run:
        show(left := unfinished(points, place), jobs or default_jobs(left), data_dir, as_json)
        return
    if points:
        run_watched(points, place, (), jobs, data_dir, quiet)
    runs = _runs_in(place, required=record or bool(out and not run_missing))
    if record:
        _record(preset, runs, ledger_dir)
    lines = fill(cells, preset.round, seeds, ledger.Book([*entries, *map(ledger.entry, runs)]))
    if as_json:
        click.echo(json.dumps(records(preset, lines), indent=2))
    else:
        print_table(text_table(preset, lines, seeds), records(preset, lines), form)
        click.echo(tally(lines, seeds), err=form != "text")


def _runs_in(place: Path, required: bool) -> list[StoredRun]:
    """The runs of a folder that can fill a cell; unless they are required, there may be none yet."""
    if not required and not any(place.rglob("experiment.toml")):
        return []
    found: dict[str, list[StoredRun]] = {"": []}
    for run in collect([place]):
        found.setdefault(ledger.unfit(run), []).append(run)
    fit = found.pop("")
    for why, runs in found.items():
        click.echo(f"note: {len(runs)} runs are left out ({why}): {', '.join(run.name for run in runs)}", err=True)
    return fit


def _record(preset: presets.Preset, runs: Sequence[StoredRun], ledger_dir: Path | None) -> None:
    own = of_cells(preset.cells, runs)
    if others := [run.name for run in runs if run not in own]:
        click.echo(f"note: {len(others)} runs fill no cell of {preset.name}: {', '.join(others)}", err=True)
    click.echo(f"{ledger.record(preset.name, own, ledger_dir)} runs recorded", err=True)


def _list() -> None:
    rows = []
    for name in presets.names():
        preset = presets.read(name)
        rows.append((name, preset.title, len(preset.cells)))
    standard_output().print(table(["name", "what it is", "cells"], rows))
