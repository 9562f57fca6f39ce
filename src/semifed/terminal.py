"""What a person sees: a progress bar in a terminal, plain lines elsewhere, and tables."""

import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from semifed.engine.notices import notices
from semifed.results.record import Record, Row
from semifed.results.tables import TextTable, latex, markdown, write_csv
from semifed.run import Event


class Watcher:
    """Shows how a run goes, on standard error, so that standard output stays for results."""

    def __init__(self, console: Console, quiet: bool = False) -> None:
        self._console, self._quiet, self._begun = console, quiet, False
        self._started, self._before = time.monotonic(), 0
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[score]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
        )

    def __call__(self, event: Event) -> None:
        if not self._begun:
            self._begin(event)
        elif not self._quiet and self._console.is_terminal:
            self._bar.update(self._task, completed=len(event.rows))
            if event.rows[-1]["models"]:  # a round without a test leaves the last score where it is
                self._bar.update(self._task, score=score_text(event.rows[-1]))
        elif not self._quiet:
            self._line(event)
        if event.rows and not self._quiet:
            self._warn(event.rows)

    def _begin(self, event: Event) -> None:
        self._begun, self._before = True, len(event.rows)
        if self._quiet:
            return
        for notice in notices(event.assembly):
            self._console.print(f"note: {notice}", markup=False, highlight=False, soft_wrap=True)
        if self._console.is_terminal:
            self._bar.start()
            rounds = event.assembly.experiment.train.rounds
            self._task = self._bar.add_task("round", total=rounds, completed=len(event.rows), score="")

    def _line(self, event: Event) -> None:
        done, rounds = len(event.rows), event.assembly.experiment.train.rounds
        pace = (time.monotonic() - self._started) / max(done - self._before, 1)
        left = f"{(rounds - done) * pace:.0f} s left"
        line = f"round {done}/{rounds}  {score_text(event.rows[-1])}  {left}"
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _warn(self, rows: Sequence[Row]) -> None:
        """Say what is wrong in the newest round, once for as long as it stays so."""
        if len(rows) <= self._before:
            return
        for name in ("alarms", "refused"):
            if not (len(rows) > 1 and rows[-2].get(name)):
                for warning in _warnings(rows[-1], name):
                    line = f"warning: round {len(rows)}: {warning}"
                    self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Take the bar away, if there is one."""
        if self._bar.live.is_started:
            self._bar.stop()


def _warnings(row: Row, name: str) -> list[str]:
    """What is wrong in a round, a line each."""
    if name == "alarms" or not row[name]:
        return list(row[name])
    named = ", ".join(f"client {client}: {reason}" for client, reason in list(row[name].items())[:3])
    line = f"{len(row[name])} of {len(row['clients'])} updates are set aside ({named})"
    return [f"{line}; the model stays as it is: {row['skipped']}" if row["skipped"] else line]


def score_text(row: Row) -> str:
    """The accuracies of one round."""
    return "  ".join(f"{name} {score['accuracy']:.2f}%" for name, score in row["models"].items())


def result_table(records: Iterable[tuple[str, Record]], title: str | None = None) -> Table:
    """Best and last accuracy of every model of some runs, with traffic and time."""
    return score_table([(name, record.summary) for name, record in records], title)


def score_table(summaries: Iterable[tuple[str, Mapping[str, Any]]], title: str | None = None) -> Table:
    """The same from summaries."""
    rows = []
    for name, summary in summaries:
        traffic = sum(summary["bytes"].values()) / 1e6
        for model, places in summary["models"].items():
            best, last = places["best"], places["last"]
            best_text = f"{best['accuracy']:.2f} (round {best['round']})"
            rows.append(
                [
                    name,
                    model,
                    best_text,
                    f"{last['accuracy']:.2f}",
                    f"{traffic:.1f}",
                    f"{summary['seconds']:.1f}",
                ]
            )
    return table(["run", "model", "best %", "last %", "MB sent", "seconds"], rows, title)


def standard_output() -> Console:
    """Standard output: as wide as the terminal, and as wide as it takes where there is none."""
    console = Console()
    return console if console.is_terminal else Console(width=max(console.width, 240))


def print_table(text: TextTable, records: Sequence[Mapping[str, Any]], form: str) -> None:
    """A table on standard output: for a terminal, or as Markdown, LaTeX or CSV."""
    if form == "text":
        standard_output().print(table(text.columns, text.rows, text.title or None))
        for note in text.numbered():
            standard_output().print(escape(note))
    else:
        made = {"markdown": markdown, "latex": latex}
        sys.stdout.write(write_csv(records) if form == "csv" else made[form](text))


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], title: str | None = None) -> Table:
    """A table of text; names are never read as markup."""
    made = Table(title=title, title_justify="left", header_style="bold")
    for column in columns:
        made.add_column(column, overflow="fold")  # a number that is cut off is worse than two lines
    for row in rows:
        made.add_row(*(escape(str(cell)) for cell in row))
    return made
