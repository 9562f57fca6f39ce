"""Whether clients still teach anything: by the labels they give themselves, other ones than the rest, or in silence."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from semifed.results.record import Row

ALMOST_ALL = 0.95
MOST = 0.8
FEWEST = 4
"""With fewer clients in a round nobody can be told from the others."""
FARTHER = 2.0
"""So many times as far from the middle as is usual in a round, where clients hold different classes."""
NEXT_TO_NOTHING = 0.01


class Rates(NamedTuple):
    """Of one client's visit: which share of its unlabelled rows got each class, and how many it looked at."""

    client: int
    classes: Sequence[float]
    rows: int


def alarms(notes: Mapping[str, Any]) -> list[str]:
    """What is wrong with a round's pseudo-labels: almost every row has one, and almost all are the same class."""
    rates, coverage = notes.get("classes", ()), notes.get("coverage", 0.0)
    if len(rates) < 2 or coverage < ALMOST_ALL or max(rates) < ALMOST_ALL * coverage:
        return []
    return [f"collapse: {max(rates):.0%} of the unlabelled rows are taken for class {rates.index(max(rates))}"]


def silence(sent: float) -> list[str]:
    """What is wrong where a method withholds what hardly moved, and at this learning rate that is nearly all."""
    if sent >= NEXT_TO_NOTHING:
        return []
    return [f"silence: clients send {sent:.2%} of what they could, so next to nothing of what they learn arrives"]


def odd_clients(seen: Sequence[Rates], deviations: float) -> list[str]:
    """Which clients label far more of their rows as one class than the others of a round: their data may be poisoned.

    A deviation is the larger of what clients differ by (from their median absolute difference) and of what chance makes
    of a client's number of rows. Where each client holds other classes every one has some that most do not have, so an
    odd one must also be farther out than is usual. Where fewer than most of the rows have labels these are too odd
    themselves to say anything.
    """
    if not deviations or len(seen) < FEWEST or len(seen[0].classes) < 2:
        return []
    given = np.array([one.classes for one in seen])
    coverage = given.sum(1)
    if np.median(coverage) < MOST:
        return []
    shares = given / np.maximum(coverage, 1e-9)[:, None]
    middle = np.median(shares, axis=0)
    away = np.abs(shares - middle)
    spread, usual = 1.4826 * np.median(away, axis=0), np.median(away.max(1))
    found = []
    for own, one, covered in zip(shares, seen, coverage, strict=True):
        rows = max(one.rows * covered, 1.0)
        chance = np.sqrt(np.clip(middle, 1 / rows, 0.5) / rows)
        beyond = np.where(own - middle > FARTHER * usual, (own - middle) / np.maximum(spread, chance), 0.0)
        worst = int(beyond.argmax())
        if beyond[worst] > deviations:
            found.append(
                f"client {one.client}: {own[worst]:.0%} of its pseudo-labels are of class {worst}, "
                f"where the middle client of the round has {middle[worst]:.0%}"
            )
    return found


def collapsed(rows: Sequence[Row], patience: int) -> bool:
    """Whether the last so many rounds all gave the alarm of one class; with a patience of 0 that never matters."""
    return 0 < patience <= len(rows) and all(_has_collapsed(row) for row in rows[-patience:])


def _has_collapsed(row: Row) -> bool:
    return any(alarm.startswith("collapse: ") for alarm in row.get("alarms", ()))
