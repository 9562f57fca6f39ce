"""Runs as they go, in a terminal: read from their folders, so that any machine that sees them can watch."""

import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from semifed.errors import SemifedError
from semifed.results.collection import SWEEP_LOCK, StoredRun, parts, planned, read_run, run_folders
from semifed.results.record import Row
from semifed.terminal import table

BLOCKS = "▁▂▃▄▅▆▇█"
ENDED = ("finished", "collapsed", "stopped", "failed", "damaged")
QUIET_AFTER, FIRST_ROUND = 120.0, 3600.0
"""Seconds without a round, beyond ten times the usual, or without a first, after which a run may have been killed."""


class Line(NamedTuple):
    """One run as it stands."""

    name: str
    status: str  # as in its summary, or waiting
    round: int
    rounds: int
    accuracy: float | None  # of the model that it hands out, last tested
    best: float | None
    history: list[float]
    left: float | None  # seconds, as the last rounds went
    alarms: int
    note: str

    def record(self) -> dict[str, object]:
        """As JSON, without the history."""
        return {name: value for name, value in self._asdict().items() if name != "history"}


@dataclass
class Watched:
    """Folders of runs and sweeps, read again only where they have changed."""

    paths: Sequence[Path]
    _known: dict[Path, tuple[object, StoredRun]] = field(default_factory=dict)

    def look(self) -> list[Line]:
        """All runs as they stand now, those that have not begun among them."""
        lines = list[Line]()
        for path in {part.resolve(): part for given in self.paths for part in parts(given)}.values():
            folders = run_folders(path)
            ages = [_age(folder / "rounds.jsonl") or _age(folder / "experiment.toml") for folder in folders]
            begun = [self._line(folder, age) for folder, age in zip(folders, ages, strict=True)]
            going = any(line.status == "running" for line in begun)
            quiet = not going and min([_age(path / SWEEP_LOCK), *ages]) > QUIET_AFTER
            there = {line.name for line in begun}
            lines += [*begun, *(_not_begun(name, quiet) for name in planned(path) if name not in there)]
        return lines

    def _line(self, folder: Path, age: float) -> Line:
        try:
            return line_of(self._read(folder), age)
        except SemifedError as error:  # the others go on
            return Line(folder.name, "damaged", 0, 0, None, None, [], None, 0, str(error))

    def _read(self, folder: Path) -> StoredRun:
        stamp = [_stamp(folder / name) for name in ("experiment.toml", "rounds.jsonl", "summary.json")]
        if folder not in self._known or self._known[folder][0] != stamp:
            self._known[folder] = stamp, read_run(folder)
        return self._known[folder][1]


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def _age(path: Path) -> float:
    """Seconds since a file was written; of a run's rounds.jsonl, since its last round."""
    stamp = _stamp(path)
    return time.time() - stamp[0] / 1e9 if stamp else 0.0


def _not_begun(name: str, quiet: bool) -> Line:
    """A run that is only planned, of a sweep that goes on or seems to have ended."""
    note = "not begun, and no other run goes on: call the sweep again" if quiet else ""
    return Line(name, "quiet" if quiet else "waiting", 0, 0, None, None, [], None, 0, note)


def line_of(run: StoredRun, age: float = 0.0) -> Line:
    """One run as it stands, its last round being so many seconds old."""
    model = next((name for row in run.rows for name in row["models"]), None)
    scores = [row["models"][model]["accuracy"] for row in run.rows if model in row["models"]]
    going = run.status not in ENDED
    pace = _pace(run.rows)
    quiet = going and age > (FIRST_ROUND if pace is None else max(QUIET_AFTER, 10 * pace))
    note = str(next(iter(run.rows[-1].get("alarms", [])), "")) if run.rows else ""
    if quiet:
        note = f"no round for {duration(age)}: stopped or killed? go on with --resume"
    return Line(
        name=run.name,
        status="quiet" if quiet else "running" if going else run.status,
        round=len(run.rows),
        rounds=run.rounds,
        accuracy=scores[-1] if scores else None,
        best=max(scores) if scores else None,
        history=scores,
        left=(run.rounds - len(run.rows)) * pace if going and not quiet and pace is not None else None,
        alarms=sum(1 for row in run.rows if row.get("alarms")),
        note=note,
    )


def _pace(rows: Sequence[Row]) -> float | None:
    """Seconds a round, as the last ones took."""
    recent = [float(row["seconds"]) for row in rows[-10:]]
    return sum(recent) / len(recent) if recent else None


def sparkline(values: Sequence[float], width: int = 16) -> str:
    """A curve in a line of text: its last values, or means of neighbours where there are more than fit."""
    if len(values) > width:
        edges = [round(number * len(values) / width) for number in range(width + 1)]
        values = [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
    low, high = min(values, default=0.0), max(values, default=0.0)
    return "".join(BLOCKS[round((value - low) / ((high - low) or 1) * (len(BLOCKS) - 1))] for value in values)


def duration(seconds: float) -> str:
    """A time in two units at most."""
    minutes, hours = int(seconds // 60), int(seconds // 3600)
    if hours:
        return f"{hours} h {minutes % 60} min"
    return f"{minutes} min {int(seconds % 60)} s" if minutes else f"{seconds:.0f} s"


def picture(lines: Sequence[Line], most: int | None = None) -> RenderableType:
    """The table of all runs; where there is no room for all, those that run come first."""
    order = {"running": 0, "quiet": 1, "failed": 2, "damaged": 2, "stopped": 3, "waiting": 5}
    shown = sorted(lines, key=lambda line: order.get(line.status, 4))[:most] if most else lines
    made = table(
        ["run", "status", "round", "accuracy %", "best %", "", "left", "alarms"],
        [
            [
                line.name,
                line.status,
                f"{line.round}/{line.rounds}" if line.rounds else "",
                _percent(line.accuracy),
                _percent(line.best),
                sparkline(line.history),
                "" if line.left is None else duration(line.left),
                f"{line.alarms} ({line.note})" if line.alarms and line.note else str(line.alarms or "") or line.note,
            ]
            for line in shown
        ],
    )
    hidden = f"; {len(lines) - len(shown)} not shown" if len(shown) < len(lines) else ""
    return Group(made, Text(summary(lines) + hidden))


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def summary(lines: Sequence[Line]) -> str:
    """All runs in one line."""
    states = dict.fromkeys(line.status for line in lines)
    counts = ", ".join(f"{sum(1 for line in lines if line.status == state)} {state}" for state in states)
    left = max((line.left for line in lines if line.left is not None), default=None)
    return f"{len(lines)} runs: {counts}" + ("" if left is None else f"; the ones that run take {duration(left)} more")


def watch_runs(
    paths: Iterable[Path | str],
    console: Console | None = None,
    every: float = 1.0,
    wait: Callable[[float], None] = time.sleep,
) -> list[Line]:
    """Show runs until all have ended or gone quiet, as a table that stays in place; without a terminal, in lines."""
    console, watched = console or Console(), Watched([Path(path) for path in paths])
    lines = watched.look()
    if not console.is_terminal:
        said = ""
        while True:
            if summary(lines) != said:
                said = summary(lines)
                console.print(said, markup=False, highlight=False, soft_wrap=True)
            if _over(lines):
                return lines
            wait(every)
            lines = watched.look()
    with Live(picture(lines, _room(console)), console=console, auto_refresh=False, transient=True) as live:
        while not _over(lines):
            wait(every)
            lines = watched.look()
            live.update(picture(lines, _room(console)), refresh=True)
    console.print(picture(lines))
    return lines


def _over(lines: Sequence[Line]) -> bool:
    return all(line.status in (*ENDED, "quiet") for line in lines)


def _room(console: Console) -> int:
    return max(3, console.size.height - 7)
