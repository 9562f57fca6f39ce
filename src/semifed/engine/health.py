"""Whether the labels that clients give themselves still say anything."""

from collections.abc import Mapping, Sequence
from typing import Any

from semifed.results.record import Row

ALMOST_ALL = 0.95


def alarms(notes: Mapping[str, Any]) -> list[str]:
    """What is wrong with a round's pseudo-labels: almost every row has one, and almost all are the same class."""
    rates, coverage = notes.get("classes", ()), notes.get("coverage", 0.0)
    if len(rates) < 2 or coverage < ALMOST_ALL or max(rates) < ALMOST_ALL * coverage:
        return []
    return [f"collapse: {max(rates):.0%} of the unlabelled rows are taken for class {rates.index(max(rates))}"]


def collapsed(rows: Sequence[Row], patience: int) -> bool:
    """Whether the last so many rounds all gave an alarm; with a patience of 0 that never matters."""
    return 0 < patience <= len(rows) and all(row.get("alarms") for row in rows[-patience:])
