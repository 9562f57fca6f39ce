"""semifed doctor."""

import json
from collections.abc import Sequence
from pathlib import Path

import click
from rich.text import Text

from semifed.commands import options
from semifed.data.file_settings import guess
from semifed.data.sources import SOURCES
from semifed.doctor import Report, examine
from semifed.doctor.page import in_words, page
from semifed.errors import DataError
from semifed.experiment import Experiment
from semifed.terminal import standard_output, table
from semifed.writing import write_whole

COLOURS = {"error": "bold red", "warning": "yellow", "note": "dim"}


@click.command()
@click.argument("data")
@click.argument("experiment", required=False, type=click.Path(path_type=Path))
@options.assignments
@click.option("--html", "html_file", type=click.Path(path_type=Path), help="Write the report to this file as well.")
@click.option("--strict", is_flag=True, help="Let warnings end with a failure too.")
@options.data_dir
@options.as_json
def doctor(
    data: str,
    experiment: Path | None,
    assignments: Sequence[str],
    html_file: Path | None,
    strict: bool,
    data_dir: Path | None,
    as_json: bool,
) -> None:
    """Look at DATA before training: faults, classes, whether the labels can work, what a site would send.

    DATA is a place (a folder, labels.csv, .npz, .parquet), folder:PATH and the like, or a known name. The exit code
    is 0 without errors and 3 with. EXPERIMENT and --set say for which method, net and scenario.

    \b
    semifed doctor photos
    semifed doctor folder:photos --set method=fedavg-fixmatch --set files.size=32 --html photos.html
    semifed doctor mnist5k exp.toml --json
    """
    place = data if data in SOURCES else guess(data, data_dir)
    wanted = Experiment.read(experiment, [f"data={json.dumps(place)}", *assignments])
    report = examine(wanted, data_dir)
    if html_file:
        write_whole(html_file, page(report).encode())
    if as_json:
        click.echo(json.dumps(report.tables(), indent=2))
    else:
        _show(report)
    if report.errors or (strict and report.warnings):
        raise DataError(
            f"{data}: {report.errors} kinds of error and {report.warnings} of warning; "
            "mend them, or see scenario.skip_corrupt for files that cannot be read"
        )


def _show(report: Report) -> None:
    console = standard_output()
    for finding in report.findings:
        mark = (f"{finding.level:8}", COLOURS[finding.level])
        console.print(Text.assemble(mark, f"{finding.kind}: {finding.count}"), soft_wrap=True)
        for example in finding.examples:
            console.print(Text(f"         {example}"), soft_wrap=True)
        if finding.count > len(finding.examples):
            console.print(Text("         ..."))
    if not report.findings:
        console.print(Text("nothing is wrong", "green"))
    if report.classes:
        rows = [[name, row["labelled"], row["test"]] for name, row in report.classes.items()]
        console.print(table(["class", "labelled", "test"], rows))
    for name, value in (*report.facts.items(), *report.sends.items()):
        sentences = value if name == "of note" else [in_words(value)]
        for sentence in sentences:
            console.print(Text.assemble((f"{name}: ", "bold"), sentence), soft_wrap=True)
    for word in report.budget:
        console.print(Text(word), soft_wrap=True)
