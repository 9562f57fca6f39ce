"""semifed split make, show, verify."""

import json
from collections.abc import Sequence
from pathlib import Path

import click

from semifed.commands import options
from semifed.data.scenario import Scenario
from semifed.data.sources import fingerprints
from semifed.engine.assemble import load_data, make_split
from semifed.errors import RunError
from semifed.experiment import Experiment
from semifed.terminal import standard_output, table


@click.group()
def split() -> None:
    """Make, show and verify who holds which samples and which labels.

    \b
    semifed split make ten.split --set scenario.clients=10
    semifed run --split ten.split --set scenario.clients=10
    """


@split.command("make")
@click.argument("file", type=click.Path(path_type=Path))
@options.experiment
@options.assignments
@options.data_dir
def split_make(file: Path, experiment: Path | None, assignments: Sequence[str], data_dir: Path | None) -> None:
    """Write the split of an experiment to FILE.

    \b
    semifed split make ten.split exp.toml --set scenario.clients=10
    """
    if file.exists():
        raise RunError(f"{file}: is there already; give another name")
    exp = Experiment.read_split(experiment, assignments)
    made = make_split(exp, load_data(exp, data_dir))
    made.save(file)
    click.echo(f"{file}: {made.digest()}")


@split.command("show")
@options.experiment
@options.assignments
@click.option("--file", type=click.Path(path_type=Path), help="A split that was made before, instead of a new one.")
@options.data_dir
@options.as_json
def split_show(
    experiment: Path | None, assignments: Sequence[str], file: Path | None, data_dir: Path | None, as_json: bool
) -> None:
    """Show how many samples of each class every client holds.

    \b
    semifed split show --set scenario.clients=10 --set scenario.partition=dirichlet
    semifed split show exp.toml --file ten.split
    """
    exp = Experiment.read_split(experiment, assignments)
    dataset = load_data(exp, data_dir)
    scenario = Scenario.load(file) if file else make_split(exp, dataset)
    scenario.verify(dataset.labels.numpy())
    counts = scenario.table(dataset.labels.numpy(), len(dataset.classes))
    classes = [*dataset.classes, *(["?"] if bool((dataset.labels < 0).any()) else [])]
    holders = [*map(str, range(len(scenario.clients))), "server"]
    labelled = [*counts.labelled.tolist(), counts.server_labelled.tolist()]
    unlabelled = [*counts.unlabelled.tolist(), counts.server_unlabelled.tolist()]
    if as_json:
        rows = zip(holders, labelled, unlabelled, strict=True)
        content = {holder: {"labelled": one, "unlabelled": two} for holder, one, two in rows}
        click.echo(json.dumps({"digest": scenario.digest(), "classes": classes, "holders": content}))
        return
    cells = [
        [holder, sum(one), sum(two), *(f"{a}+{b}" if a or b else "" for a, b in zip(one, two, strict=True))]
        for holder, one, two in zip(holders, labelled, unlabelled, strict=True)
    ]
    standard_output().print(
        table(["client", "labelled", "unlabelled", *classes], cells, "labelled + unlabelled of each class")
    )
    click.echo(f"test {len(scenario.test)}  validation {len(scenario.validation)}  unused {len(scenario.unused)}")
    click.echo(f"digest {scenario.digest()}")


@split.command("verify")
@click.argument("file", type=click.Path(path_type=Path))
@options.experiment
@options.assignments
@options.data_dir
def split_verify(file: Path, experiment: Path | None, assignments: Sequence[str], data_dir: Path | None) -> None:
    """Check that FILE is whole and fits the data of an experiment: disjoint, complete, no test image elsewhere.

    \b
    semifed split verify ten.split exp.toml
    """
    exp = Experiment.read_split(experiment, assignments)
    dataset = load_data(exp, data_dir)
    scenario = Scenario.load(file)
    scenario.verify(dataset.labels.numpy(), fingerprints(dataset.images).numpy())
    click.echo(f"{file}: good, {scenario.digest()}")
