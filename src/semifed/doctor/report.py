"""What a look at data has shown: facts, findings, what would be sent, and a word on the labels."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from semifed.data.folders import Level, Problem

SHOWN = 5  # examples of each kind of finding
RANK: dict[Level, int] = {"error": 0, "warning": 1, "note": 2}


@dataclass(frozen=True)
class Finding:
    """All problems of one kind."""

    kind: str
    level: Level
    count: int
    examples: tuple[str, ...]


@dataclass(frozen=True)
class Report:
    """The result of `examine`. An error stops a run or spoils its result; a warning deserves a look."""

    data: str
    facts: dict[str, Any]
    classes: dict[str, dict[str, int]]  # labelled and test samples of each
    findings: tuple[Finding, ...]
    sends: dict[str, Any]
    budget: tuple[str, ...]

    @property
    def errors(self) -> int:
        """How many kinds of error there are."""
        return sum(finding.level == "error" for finding in self.findings)

    @property
    def warnings(self) -> int:
        """How many kinds of warning there are."""
        return sum(finding.level == "warning" for finding in self.findings)

    def tables(self) -> dict[str, Any]:
        """Everything as plain values, for JSON."""
        return dataclasses.asdict(self) | {"errors": self.errors, "warnings": self.warnings}


def gather(problems: Sequence[Problem]) -> tuple[Finding, ...]:
    """One finding for each kind, the gravest first; the level of a kind is its gravest."""
    kinds: dict[str, list[Problem]] = {}
    for problem in problems:
        kinds.setdefault(problem.kind, []).append(problem)
    found = []
    for kind, own in kinds.items():
        level = min((one.level for one in own), key=RANK.__getitem__)
        texts = dict.fromkeys(str(one) for one in own)
        found.append(Finding(kind, level, len(own), tuple(texts)[:SHOWN]))
    return tuple(sorted(found, key=lambda one: (RANK[one.level], one.kind)))
