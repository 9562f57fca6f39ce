"""What came out of a run: its rows, best and last, and the model."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from semifed.params import Params
from semifed.results.files import digest

Row = dict[str, Any]
"""What one round leaves behind: a line of rounds.jsonl."""


def strict(value: Any) -> Any:
    """The same with None for numbers that JSON cannot hold: a loss that is not finite has no value."""
    if isinstance(value, dict):
        return {name: strict(one) for name, one in value.items()}
    if isinstance(value, list):
        return [strict(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@dataclass(frozen=True, eq=False)
class Record:
    """A run as Python sees it; the same is in its folder, if it has one."""

    rows: list[Row]
    summary: dict[str, Any]
    model: Params
    path: Path | None


def count_refused(rows: Sequence[Row]) -> dict[str, dict[str, int]]:
    """How often each client's update was set aside, by the reason."""
    counts: dict[str, dict[str, int]] = {}
    for row in rows:
        for client, reason in row["refused"].items():
            own, code = counts.setdefault(client, {}), reason.partition(":")[0]
            own[code] = own.get(code, 0) + 1
    return dict(sorted(counts.items(), key=lambda one: int(one[0])))


def summarise(rows: Sequence[Row], model: Params, status: str) -> dict[str, Any]:
    """The scores of a run, and the hash of the model.

    The status is "finished", "collapsed" (train.stop_on_collapse), "stopped" (Ctrl-C) or "failed"; in a folder whose
    run goes on, "running".
    """
    return {"status": status, **scores(rows), "model": digest(model)}


def _spent(row: Row) -> dict[str, float]:
    return {name: row["privacy"][name] for name in ("epsilon", "delta")}


def scores(rows: Sequence[Row]) -> dict[str, Any]:
    """Best and last score of each model, the traffic and the time in all."""
    models = {}
    for name in dict.fromkeys(name for row in rows for name in row["models"]):
        tested = [row for row in rows if name in row["models"]]  # none of the clients' nets where no update counted
        best = max(tested, key=lambda row: row["models"][name]["accuracy"])
        places = {"best": best, "last": tested[-1]}
        models[name] = {place: {"round": row["round"], **row["models"][name]} for place, row in places.items()}
    return {
        "rounds": len(rows),
        "models": models,
        "alarms": sum(1 for row in rows if row.get("alarms")),
        "refused": count_refused(rows),
        "skipped": sum(1 for row in rows if row.get("skipped")),
        **({"privacy": _spent(rows[-1])} if rows and "privacy" in rows[-1] else {}),
        "bytes": {way: sum(row["bytes"][way] for row in rows) for way in ("down", "up")},
        "seconds": sum(row["seconds"] for row in rows),
    }
