"""semifed report."""

import json
from collections.abc import Sequence
from pathlib import Path

import click

from semifed.commands import options
from semifed.report import check_page, write_report
from semifed.report.figures import write_figures


@click.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "-o", "--out", type=click.Path(path_type=Path), default=Path("report.html"), show_default=True, help="The page."
)
@click.option("--title", default="Semifed report", show_default=True, help="Title of the page.")
@click.option("--figures", type=click.Path(path_type=Path), metavar="DIR", help="Also figures for papers, PDF and PNG.")
@options.as_json
def report(runs: Sequence[Path], out: Path, title: str, figures: Path | None, as_json: bool) -> None:
    """Make one page of runs: table, curves, pseudo-label health, layers, traffic, splits. It opens without a network.

    Give folders of runs and of sweeps; runs that differ in the seed alone are one line with a band.

    \b
    semifed report sweeps/first -o report.html
    semifed report runs/a runs/b --figures figures
    """
    check_page(out)  # before the figures, which take their time
    drawn = write_figures(runs, figures) if figures else []
    page = write_report(runs, out, title)
    if as_json:
        answer = {"page": str(page), "bytes": page.stat().st_size, "figures": [str(path) for path in drawn]}
        click.echo(json.dumps(answer, indent=2))
        return
    click.echo(f"the page is {page} ({page.stat().st_size / 1e6:.1f} MB)")
    if figures:
        click.echo(f"{len(drawn)} figures are in {figures}")
