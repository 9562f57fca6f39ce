"""An honest word on the labels: what we have measured with as many, and where we know nothing."""

import csv
from functools import cache
from pathlib import Path
from typing import NamedTuple

from semifed.data.raw import Raw

MEASURED = Path(__file__).with_name("measured.csv")


class Measured(NamedTuple):
    """One line of our label-efficiency experiment: ten classes, five clients, the mean of three seeds."""

    data: str
    labels: str  # at the client or the server
    total: int
    alone: str  # accuracy with labels alone
    method: str  # that made the most of unlabelled samples
    last: str
    gain: str


@cache
def measured() -> tuple[Measured, ...]:
    """What `make docs` has condensed from the tables of docs/results."""
    with MEASURED.open(encoding="utf-8", newline="") as file:
        return tuple(Measured(**{**row, "total": int(row["total"])}) for row in csv.DictReader(file))  # type: ignore[arg-type]


def on_budget(raw: Raw, where: str) -> tuple[str, ...]:
    """Sentences on whether these labels can work, from our own figures and nothing else."""
    own = raw.labels[~raw.test & (raw.labels >= 0)]
    blanks = int((raw.labels[~raw.test] < 0).sum())
    counts = own.bincount(minlength=len(raw.classes)).tolist()
    fewest, mean = min(counts), sum(counts) / len(counts)
    words = [f"{len(own):,} labels for {len(counts)} classes, {mean:.1f} a class and {fewest} at least; "
             f"{blanks:,} training samples without a label."]  # fmt: skip
    rows = [row for row in measured() if row.labels == where]
    budgets = sorted({row.total // 10 for row in rows})  # labels a class: these data sets have ten
    if not fewest:
        return (*words, "A class without any label cannot be learned, whatever the method.")
    if mean < budgets[0]:
        words.append(f"We have never measured with fewer than {budgets[0]} labels a class: expect little, label more.")
    elif mean > 2 * budgets[-1]:
        words.append(f"More than we have measured ({budgets[-1]} a class), where unlabelled samples added little.")
    near = min(budgets, key=lambda one: abs(one - mean))
    for row in (row for row in rows if row.total == 10 * near):
        words.append(
            f"Measured with {near} a class on {row.data}, labels at the {where}: {row.alone} % with labels alone, "
            f"{row.last} % with the best use of unlabelled samples we found ({row.method}, gain {row.gain})."
        )
    words.append(
        "These were grey 28x28 images, in a setting where pseudo-labels pay; harder images need more labels. "
        "Compare with labels alone (method fedavg+) before you trust any method here."
    )
    if not blanks:
        words.append("No training sample is without a label: labels alone may be all you need.")
    return tuple(words)
