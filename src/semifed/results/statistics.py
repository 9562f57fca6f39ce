"""Runs over seeds as numbers: means with confidence intervals, and paired tests between methods.

    groups = compare(collect([Path("sweeps/first")]), target=90)
    pairs = pair_up(groups, groups[0])

Seeds are few and the spread is not known, so intervals and tests are those of Student's t. A test pairs runs of equal
seed and equal split: what the split and the draws do to both then falls out.
"""

import importlib
import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from semifed.errors import SettingError
from semifed.results.collection import StoredRun, groups
from semifed.settings import nearest

LEVEL = 0.95


class Spread(NamedTuple):
    """A mean over seeds, its standard deviation, and the 95% confidence interval of the mean."""

    mean: float
    std: float | None  # of one seed there is none
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Comparison:
    """What a group of runs has come to; accuracies in per cent."""

    label: str
    method: str
    model: str
    runs: tuple[StoredRun, ...]
    last: Spread
    best: Spread
    best_round: Spread
    rounds_to_target: Spread | None  # of the runs that reach it
    bytes_to_target: Spread | None
    reached: int | None  # runs; None without a target
    bytes: Spread
    seconds: Spread

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds, in order."""
        return tuple(run.seed for run in self.runs)

    def record(self) -> dict[str, Any]:
        """As plain values, for CSV and JSON."""
        found: dict[str, Any] = {"label": self.label, "method": self.method, "model": self.model}
        found["seeds"] = len(self.runs)
        spreads = ("last", "best", "best_round", "rounds_to_target", "bytes_to_target", "bytes", "seconds")
        for name in spreads:
            spread: Spread | None = getattr(self, name)
            values = spread or (None, None, None, None)
            found |= {f"{name}_{part}": value for part, value in zip(Spread._fields, values, strict=True)}
        return found | {"reached_target": self.reached}


@dataclass(frozen=True)
class Pair:
    """One group against another on equal seeds and splits; the difference is in points of accuracy."""

    label: str
    against: str
    pairs: int
    difference: Spread | None  # None without a pair
    p: float | None  # of the paired t-test; None with fewer than two pairs or no spread at all
    p_holm: float | None  # the same for as many tests as the table has

    def record(self) -> dict[str, Any]:
        """As plain values, for CSV and JSON."""
        found = asdict(self)
        values = found.pop("difference") or (None, None, None, None)
        names = [f"difference_{part}" for part in Spread._fields]
        return {**found, **dict(zip(names, values, strict=True))}


def spread(values: Sequence[float]) -> Spread:
    """Mean, deviation and interval of a sample."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return Spread(mean, None, None, None)
    std = statistics.stdev(values)
    reach = float(_special().stdtrit(len(values) - 1, (1 + LEVEL) / 2)) * std / math.sqrt(len(values))
    return Spread(mean, std, mean - reach, mean + reach)


def compare(runs: Sequence[StoredRun], target: float | None = None, model: str | None = None) -> list[Comparison]:
    """The finished runs by group, each seed and split once; a run's first model counts, or the named one it has."""
    done = [run for run in runs if run.done and run.summary["models"]]
    known = dict.fromkeys(name for run in done for name in run.summary["models"])
    if model is not None and done and model not in known:
        raise SettingError(f"--model: no run has a model {model!r}; {nearest(model, known)}")
    return [_comparison(group.label, group.runs, target, model) for group in groups(done)]


def _comparison(label: str, runs: Sequence[StoredRun], target: float | None, model: str | None) -> Comparison:
    asked = any(model in run.summary["models"] for run in runs)
    name = str(model if asked else next(iter(runs[0].summary["models"])))
    runs = [run for run in runs if name in run.summary["models"]]
    places = [run.summary["models"][name] for run in runs]
    reached = [arrival for run in runs if target is not None and (arrival := _arrival(run, name, target))]
    return Comparison(
        label=label,
        method=runs[0].method,
        model=name,
        runs=tuple(runs),
        last=spread([place["last"]["accuracy"] for place in places]),
        best=spread([place["best"]["accuracy"] for place in places]),
        best_round=spread([place["best"]["round"] for place in places]),
        rounds_to_target=spread([rounds for rounds, _ in reached]) if reached else None,
        bytes_to_target=spread([sent for _, sent in reached]) if reached else None,
        reached=None if target is None else len(reached),
        bytes=spread([sum(run.summary["bytes"].values()) for run in runs]),
        seconds=spread([run.summary["seconds"] for run in runs]),
    )


def _arrival(run: StoredRun, model: str, target: float) -> tuple[int, int] | None:
    """The first tested round that is as good as the target, and the bytes sent both ways until then."""
    sent = 0
    for row in run.rows:
        sent += sum(row["bytes"].values())
        if model in row["models"] and row["models"][model]["accuracy"] >= target:
            return row["round"], sent
    return None


def pair_up(found: Sequence[Comparison], reference: Comparison) -> list[Pair]:
    """Every other group against one, last rounds, with the p-values of several tests put right after Holm."""
    pairs = [_pair(one, reference) for one in found if one is not reference]
    tested = sorted((pair for pair in pairs if pair.p is not None), key=lambda pair: pair.p or 0.0)
    adjusted, largest = dict[int, float](), 0.0
    for place, pair in enumerate(tested):
        largest = max(largest, min(1.0, (pair.p or 0.0) * (len(tested) - place)))
        adjusted[id(pair)] = largest
    return [Pair(one.label, one.against, one.pairs, one.difference, one.p, adjusted.get(id(one))) for one in pairs]


def _pair(one: Comparison, other: Comparison) -> Pair:
    theirs = {run.lot: run for run in other.runs if run.lot}
    both = [(run, theirs[run.lot]) for run in one.runs if run.lot in theirs]
    differences = [_last(mine, one.model) - _last(other_run, other.model) for mine, other_run in both]
    p = None
    if len(differences) > 1:
        p = _t_test(differences)
    return Pair(one.label, other.label, len(both), spread(differences) if differences else None, p, None)


def _t_test(differences: Sequence[float]) -> float | None:
    """The chance of a mean at least so far from 0 if there were no difference: Student's test, two-sided."""
    count, mean, std = len(differences), statistics.fmean(differences), statistics.stdev(differences)
    if std <= 1e-9 * max(1.0, abs(mean)):  # equal but for rounding: 0.1 is not the same number after 90 and after 91.3
        return None
    t = mean * math.sqrt(count) / std
    return float(2 * _special().stdtr(count - 1, -abs(t)))


def _special() -> Any:
    """Student's distribution. Here, because scipy takes as long to import as all of semifed."""
    return importlib.import_module("scipy.special")


def _last(run: StoredRun, model: str) -> float:
    return float(run.summary["models"][model]["last"]["accuracy"])


def find(found: Sequence[Comparison], label: str | None) -> Comparison:
    """The group with a label or of a method; the first if none is named."""
    if label is None:
        return found[0]
    fitting = [one for one in found if one.label == label] or [one for one in found if one.method == label]
    if not fitting:
        raise SettingError(f"--against: there is no group {label!r}; {nearest(label, [one.label for one in found])}")
    if len(fitting) > 1:
        raise SettingError(f"--against: {label!r} are several; give one of: {'; '.join(one.label for one in fitting)}")
    return fitting[0]
