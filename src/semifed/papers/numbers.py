"""The published figures: published.csv has every accuracy that the four papers print, a row each."""

import csv
import functools
import re
from collections.abc import Mapping
from importlib import resources
from typing import NamedTuple

COLUMNS = ("scenario", "dataset", "setting", "gamma", "method")
"""What names a cell of a table."""


class Published(NamedTuple):
    """One cell of a paper's table or figure; without an accuracy where the paper prints none."""

    paper: str
    table: str
    scenario: str
    dataset: str
    setting: str
    gamma: str
    method: str
    accuracy: float | None = None
    cost: float | None = None  # per cent of a dense net, sent by a client
    runs: int | None = None

    @property
    def key(self) -> str:
        """A short name within the table, such as mnist/iid/0.1/fedsiam-d."""
        words = (self.dataset, self.setting, self.gamma, self.method)
        return "/".join([slug(word) for word in words if word] + ([self.place] if self.both_scenarios else []))

    @property
    def place(self) -> str:
        """Who holds the labels: client or server."""
        return self.scenario.removeprefix("labels-at-")

    @property
    def both_scenarios(self) -> bool:
        """Whether the table has rows of both scenarios, so that the key must say which."""
        return (self.paper, self.table) == ("FedMatch", "1")


@functools.cache
def published() -> tuple[Published, ...]:
    """Every row of published.csv."""
    text = resources.files("semifed.papers").joinpath("published.csv").read_text("utf-8")
    return tuple(read_row(row) for row in csv.DictReader(text.splitlines()))


def read_row(row: Mapping[str, str]) -> Published:
    """A row with its numbers as numbers; gamma stays text, as people write it."""
    return Published(
        paper=row["paper"],
        table=row["table"],
        scenario=row["scenario"],
        dataset=row["dataset"],
        setting=row["setting"],
        gamma=f"{float(row['gamma']):g}" if row["gamma"] else "",
        method=row["method"],
        accuracy=float(row["accuracy"]) if row["accuracy"] else None,
        cost=float(row["cost"]) if row["cost"] else None,
        runs=int(row["runs"]) if row["runs"] else None,
    )


def slug(text: str) -> str:
    """A name in small letters, digits and dashes; + and . stay."""
    return re.sub(r"[^a-z0-9+.=]+", "-", text.lower()).strip("-")
