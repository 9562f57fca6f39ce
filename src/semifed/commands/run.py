"""semifed run."""

import json
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console

from semifed.commands import options
from semifed.data.scenario import Scenario
from semifed.errors import RunError, SettingError
from semifed.experiment import Experiment, method_name
from semifed.run import run as run_experiment
from semifed.terminal import Watcher, result_table


@click.command()
@options.experiment
@options.assignments
@click.option("--out", type=click.Path(path_type=Path), help="Folder of the run (else a new one under runs/).")
@click.option("--resume", is_flag=True, help="Go on with the run in --out.")
@click.option("--override", is_flag=True, help="With --resume: go on although the experiment has changed.")
@click.option("--previous", is_flag=True, help="With --resume: start from the checkpoint before the newest one.")
@click.option(
    "--split", "split_file", type=click.Path(path_type=Path), help="Use a split made by `semifed split make`."
)
@click.option("--quiet", is_flag=True, help="Show nothing but the result.")
@options.data_dir
@options.as_json
def run(
    experiment: Path | None,
    assignments: Sequence[str],
    out: Path | None,
    resume: bool,
    override: bool,
    previous: bool,
    split_file: Path | None,
    quiet: bool,
    data_dir: Path | None,
    as_json: bool,
) -> None:
    """Train a federation; without arguments, FedAvg on the embedded data.

    \b
    semifed run
    semifed run exp.toml --set method=fedprox --set train.rounds=20 --out runs/prox
    semifed run --out runs/prox --resume
    """
    if out is None and (resume or override or previous):
        raise SettingError("--resume: say which run with --out DIR")
    given = experiment or assignments or not resume
    exp = Experiment.read(experiment, assignments) if given else None
    split = Scenario.load(split_file) if split_file else None
    errors = Console(stderr=True)
    watcher = Watcher(errors, quiet or as_json)
    try:
        record = run_experiment(
            exp,
            out or _new_folder(exp),
            resume=resume,
            override=override,
            previous=previous,
            split=split,
            data_dir=data_dir,
            watch=watcher,
        )
    finally:
        watcher.close()
    if as_json:
        click.echo(json.dumps({**record.summary, "folder": str(record.path)}, indent=2))
    else:
        name = record.path.name if record.path else ""
        Console().print(result_table([(name, record)]))
        click.echo(f"everything is in {record.path}")


def _new_folder(experiment: Experiment | None) -> Path:
    """The first free name under runs/ for an experiment."""
    if experiment is None:
        raise RunError("--out: say which folder")
    data = experiment.tables()["data"]
    stem = f"{method_name(type(experiment.method)).replace(':', '.')}-{data}-{experiment.scenario.partition}"
    number = 1
    while (Path("runs") / f"{stem}-{number:03d}").exists():
        number += 1
    return Path("runs") / f"{stem}-{number:03d}"
