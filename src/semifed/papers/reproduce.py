"""A paper's table beside ours: filled from the ledger and from runs, and run where asked.

preset = presets.read("fedsiam/table5")
lines = fill(preset.cells, preset.round, 3, Book(ledger.read()))
"""

import json
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

from semifed.experiment import Experiment
from semifed.papers.ledger import Book, Entry, settings_of
from semifed.papers.presets import PAPER_SCALE, Cell, Preset
from semifed.results.collection import StoredRun
from semifed.results.tables import TextTable
from semifed.sweeps.grid import Point, point_name

_COLUMNS = ("data", "setting", "gamma", "method", "paper", "ours", "difference", "last", "best", "seeds", "note")

ROUND_WORDS = {"last": "the last round", "best": "the best round", "kept": "the round of the lowest test loss"}


class Line(NamedTuple):
    """A cell with our scores by seed; of a cell that was not run they are empty."""

    cell: Cell
    seeds: list[int]
    ours: list[float]  # in the round that is held against the paper's number
    last: list[float]
    best: list[float]
    entries: list[Entry]

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's, in points."""
        paper = self.cell.published.accuracy
        return None if paper is None or not self.ours else statistics.fmean(self.ours) - paper


def fill(cells: Sequence[Cell], round: str, seeds: int, book: Book) -> list[Line]:
    """Each cell with what is known of its seeds, which are counted from 0."""
    lines = []
    for cell in cells:
        known = book.of(cell.experiment)
        found = {seed: one for seed, one in known.items() if 0 <= seed < seeds and _model(cell, one)}
        scores = [one.models[_model(cell, one)] for one in found.values()]
        ours, last, best = ([score[place] for score in scores] for place in (round, "last", "best"))
        lines.append(Line(cell, list(found), ours, last, best, list(found.values())))
    return lines


def _model(cell: Cell, entry: Entry) -> str:
    """The model of a run that counts for a cell; empty if the run has none such."""
    first = next(iter(entry.models), "")
    return first if cell.model is None else cell.model if cell.model in entry.models else ""


def of_cells(cells: Sequence[Cell], runs: Sequence[StoredRun]) -> list[StoredRun]:
    """Of runs that are fit, those that fill one of these cells: a folder may hold runs of several tables."""
    wanted = [settings_of(cell.experiment) for cell in cells]
    return [run for run in runs if settings_of(Experiment.of(run.experiment)) in wanted]


def missing(cells: Sequence[Cell], seeds: int, book: Book | None = None) -> list[Point]:
    """The runs that it takes to fill cells, without those in the book; one that fills two cells stands once."""
    points: dict[str, Point] = {}
    for cell in cells:
        known = book.of(cell.experiment) if book else {}
        for seed in range(seeds):
            identity = f"{json.dumps(settings_of(cell.experiment), sort_keys=True)} {seed}"
            if identity not in points and not (seed in known and _model(cell, known[seed])):
                name = point_name([*cell.key.split("/"), f"seed={seed}"])
                points[identity] = Point(name, cell.experiment.replace(f"seed={seed}"))
    return list(points.values())


def records(preset: Preset, lines: Sequence[Line]) -> list[dict[str, Any]]:
    """The lines as plain values, for programs."""
    return [
        {
            "data": line.cell.published.dataset,
            "scenario": line.cell.published.scenario,
            "setting": line.cell.published.setting,
            "gamma": float(line.cell.published.gamma) if line.cell.published.gamma else None,
            "method": line.cell.published.method,
            "scale": preset.scale,
            "round": preset.round,
            "paper": line.cell.published.accuracy,
            "ours": statistics.fmean(line.ours) if line.ours else None,
            "std": statistics.stdev(line.ours) if len(line.ours) > 1 else None,
            "difference": line.difference,
            "last": statistics.fmean(line.last) if line.last else None,
            "best": statistics.fmean(line.best) if line.best else None,
            "seeds": len(line.seeds),
            "note": line.cell.note or None,
        }
        for line in lines
    ]


def text_table(preset: Preset, lines: Sequence[Line], seeds: int) -> TextTable:
    """The lines as people read them; what is known of the differences stands below, each reason once."""
    reasons = list(dict.fromkeys(line.cell.note for line in lines if line.seeds and line.cell.note))
    rows = [[*_texts(line), _remark(line, seeds, reasons)] for line in lines]
    smaller = f"; scale {preset.scale}: {preset.about}" if preset.scale != PAPER_SCALE else ""
    return TextTable(_COLUMNS, rows, f"{preset.title}; ours: {ROUND_WORDS[preset.round]}{smaller}", reasons)


def _texts(line: Line) -> list[str]:
    row = line.cell.published
    where = f"{row.setting}, labels at the {row.place}" if row.both_scenarios else row.setting
    paper = "–" if row.accuracy is None else f"{row.accuracy:.2f}"
    ours, last, best = (mean_and_deviation(values) or "–" for values in (line.ours, line.last, line.best))
    apart = "–" if line.difference is None else f"{line.difference:+.2f}"
    return [row.dataset, where, row.gamma, row.method, paper, ours, apart, last, best, str(len(line.seeds))]


def _remark(line: Line, seeds: int, reasons: Sequence[str]) -> str:
    """What has not been run, and the number of the reason why ours differs."""
    if not line.seeds:
        return "not run"
    missing_ones = "" if len(line.seeds) >= seeds else f"{seeds - len(line.seeds)} of {seeds} seeds not run"
    ended = sum(one.facts.get("status") == "collapsed" for one in line.entries)
    collapsed = f"{ended} of {len(line.seeds)} collapsed and ended early" if ended else ""
    reason = f"({reasons.index(line.cell.note) + 1})" if line.cell.note else ""
    return " ".join([", ".join(part for part in (missing_ones, collapsed) if part), reason]).strip()


def mean_and_deviation(values: Sequence[float]) -> str:
    """97.12 ± 0.10, or the number alone if there is one."""
    if not values:
        return ""
    deviation = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.2f}{deviation}"


def tally(lines: Sequence[Line], seeds: int) -> str:
    """How many cells are filled, in one line."""
    full = sum(len(line.seeds) >= seeds for line in lines)
    some = sum(0 < len(line.seeds) < seeds for line in lines)
    partly = f", {some} in part" if some else ""
    return f"{full} of {len(lines)} cells filled with {seeds} seeds{partly}, {len(lines) - full - some} not run"
