"""Comparisons as people read them."""

from collections.abc import Sequence

from semifed.results.statistics import Comparison, Pair, Spread
from semifed.results.tables import TextTable


def comparison_table(found: Sequence[Comparison], target: float | None = None) -> TextTable:
    """One line a group: the last round with its interval, the best, the way to the target, traffic and time."""
    way = [] if target is None else [f"rounds to {target:g}%", f"MB to {target:g}%"]
    columns = ["runs", "seeds", "last %", "95% interval", "best %", "best round", *way, "MB sent", "seconds"]
    rows = []
    for one in found:
        share = f" ({one.reached} of {len(one.runs)})"
        arrival = [] if target is None else [_mean(one.rounds_to_target, 1) + share, _mean(one.bytes_to_target, 1, 1e6)]
        rows.append(
            [
                one.label if len({other.model for other in found}) == 1 else f"{one.label} [{one.model}]",
                str(len(one.runs)),
                _deviation(one.last),
                _interval(one.last),
                _deviation(one.best),
                _mean(one.best_round, 1),
                *arrival,
                _mean(one.bytes, 1, 1e6),
                _mean(one.seconds, 1),
            ]
        )
    return TextTable(columns, rows)


def pair_table(pairs: Sequence[Pair]) -> TextTable:
    """One line a test."""
    columns = ["runs", "against", "pairs", "difference", "95% interval", "p", "p (Holm)"]
    rows = [
        [
            pair.label,
            pair.against,
            str(pair.pairs),
            _deviation(pair.difference, "+"),
            _interval(pair.difference, "+"),
            _probability(pair.p),
            _probability(pair.p_holm),
        ]
        for pair in pairs
    ]
    return TextTable(columns, rows, "Last rounds on equal seeds and splits, paired t-test")


def _mean(spread: Spread | None, digits: int, unit: float = 1.0) -> str:
    return "–" if spread is None else f"{spread.mean / unit:.{digits}f}"


def _deviation(spread: Spread | None, sign: str = "") -> str:
    if spread is None:
        return "–"
    return f"{spread.mean:{sign}.2f}" + ("" if spread.std is None else f" ± {spread.std:.2f}")


def _interval(spread: Spread | None, sign: str = "") -> str:
    if spread is None or spread.low is None:
        return "–"
    return f"{spread.low:{sign}.2f} to {spread.high:{sign}.2f}"


def _probability(p: float | None) -> str:
    return "–" if p is None else "<0.001" if p < 0.001 else f"{p:.3f}"
