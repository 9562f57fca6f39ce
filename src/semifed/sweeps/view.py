"""How a sweep goes, for a person: a view of the runs in a terminal, plain lines elsewhere."""

import time

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from semifed.sweeps.progress import FAILED, FINISHED, RUNNING, WAITING, RunProgress, SweepProgress

_PAUSE = 30.0  # seconds between two plain lines while no run ends


class SweepWatcher:
    """Shows how a sweep goes, on standard error, so that standard output stays for results."""

    def __init__(self, console: Console, quiet: bool = False) -> None:
        self._console, self._quiet = console, quiet
        # No thread of its own: runs are forked from this process, and a fork takes one thread only.
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._told: dict[str, str] = {}
        self._said = 0.0

    def __call__(self, progress: SweepProgress) -> None:
        if self._quiet:
            return
        if self._console.is_terminal:
            if not self._live.is_started:
                self._live.start()
            self._live.update(_picture(progress, self._console.height), refresh=True)
        else:
            self._lines(progress)

    def _lines(self, progress: SweepProgress) -> None:
        news = False
        for name, run in progress.runs.items():
            if run.state in (FINISHED, FAILED) and self._told.get(name) != run.state:
                first = not self._said and run.state == FINISHED  # done before this call
                self._told[name] = run.state
                news = news or not first
                if not first:
                    self._print(f"{name}: {_outcome(run)}")
        if news or not self._said or time.monotonic() - self._said > _PAUSE:
            self._print(summary_line(progress))
            self._said = time.monotonic()

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Take the view away, if there is one."""
        if self._live.is_started:
            self._live.stop()


def _picture(progress: SweepProgress, height: int) -> RenderableType:
    """Those that run, those that failed, and a line about all."""
    table = Table.grid(padding=(0, 1))
    shown = [(name, run) for name, run in progress.runs.items() if run.state in (RUNNING, FAILED)]
    for name, run in shown[: max(height - 3, 1)]:
        bar = ProgressBar(total=run.rounds, completed=run.done, width=20)
        table.add_row(Text(name), bar, Text(f"{run.done}/{run.rounds}"), Text(_outcome(run)))
    return Group(table, Text(summary_line(progress), style="bold"))


def _outcome(run: RunProgress) -> str:
    if run.failure:
        return f"failed: {run.failure}"
    score = "" if run.accuracy is None else f"{run.accuracy:.2f}%"
    return f"{run.state} {score}".strip()


def summary_line(progress: SweepProgress) -> str:
    """How many runs are done, and how long the rest will take."""
    counts = [f"{progress.count(FINISHED)}/{len(progress.runs)} runs finished", f"{progress.count(RUNNING)} running"]
    if failed := progress.count(FAILED):
        counts.append(f"{failed} failed")
    if progress.count(RUNNING) or progress.count(WAITING):
        left = progress.seconds_left()
        counts.append("time left not known yet" if left is None else f"{duration(left)} left")
    return ", ".join(counts)


def duration(seconds: float) -> str:
    """A time as people say it."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 5940:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
