"""Curves of a group of runs: the mean over seeds and how far they spread, thinned so that a page stays small."""

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from semifed.results.record import Row

MOST_POINTS = 200
"""Points of a curve: more than a screen can show apart."""

Number = float | None
Measure = Callable[[Row], Any]
"""One number of a row; None where the row has none."""


class Curve(NamedTuple):
    """Rounds, the mean over seeds there, and the standard deviation; 0 where one seed alone has come so far."""

    rounds: list[int]
    mean: list[Number]
    std: list[Number]

    def plain(self) -> dict[str, Any]:
        """As JSON, without the deviations if there are none."""
        spread = [rounded(one) for one in self.std] if any(self.std) else None
        return {"x": self.rounds, "mean": [rounded(one) for one in self.mean], "std": spread}


def curve(runs: Sequence[Sequence[Row]], measure: Measure) -> Curve | None:
    """The curve of a measure over the rounds in which any run has it; None if no run ever has it."""
    found: dict[int, list[float]] = {}
    for rows in runs:
        for row in rows:
            value = measure(row)
            if value is not None and math.isfinite(value):
                found.setdefault(int(row["round"]), []).append(float(value))
    if not found:
        return None
    rounds = thin(sorted(found))
    return Curve(rounds, [statistics.fmean(found[one]) for one in rounds], [deviation(found[one]) for one in rounds])


class Grid(NamedTuple):
    """A number for each name and round, the mean over seeds: what a heat map shows."""

    rounds: list[int]
    names: list[str]
    values: list[list[Number]]  # by name, then by round

    def plain(self) -> dict[str, Any]:
        """As JSON."""
        values = [[rounded(one, 3) for one in row] for row in self.values]
        return {"x": self.rounds, "names": self.names, "values": values}


def grid(runs: Sequence[Sequence[Row]], measure: Callable[[Row], dict[str, float]], most: int) -> Grid | None:
    """A grid of what rows have by name; of more than `most` names those with the largest numbers."""
    found: dict[str, dict[int, list[float]]] = {}
    rounds = thin(sorted({int(row["round"]) for rows in runs for row in rows if measure(row)}), MOST_POINTS // 2)
    wanted = set(rounds)
    for rows in runs:
        for row in rows:
            if int(row["round"]) in wanted:
                for name, value in measure(row).items():
                    if value is not None and math.isfinite(value):
                        found.setdefault(name, {}).setdefault(int(row["round"]), []).append(float(value))
    if not found:
        return None
    peak = {name: max(max(values) for values in own.values()) for name, own in found.items()}
    kept = set(sorted(peak, key=lambda name: -peak[name])[:most])
    names = [name for name in found if name in kept]
    values = [[statistics.fmean(found[name][one]) if one in found[name] else None for one in rounds] for name in names]
    return Grid(rounds, names, values)


def thin(places: Sequence[int], most: int = MOST_POINTS) -> list[int]:
    """At most so many of them, evenly, the first and the last always among them."""
    if len(places) <= most:
        return list(places)
    step = (len(places) - 1) / (most - 1)
    return [places[round(number * step)] for number in range(most)]


def deviation(values: Sequence[float]) -> float:
    """The standard deviation of a sample; 0 of one value."""
    return statistics.stdev(values) if len(values) > 1 else 0.0


def rounded(value: Number, digits: int = 4) -> Number:
    """With so many digits that count, which is what an eye can tell apart."""
    if value is None or not math.isfinite(value):
        return None
    if value == 0:
        return 0
    short = round(value, digits - 1 - math.floor(math.log10(abs(value))))
    return int(short) if short == int(short) and abs(short) < 2**53 else short
