"""A row as numbers with names that charts group by."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from semifed.results.record import Row

_LEFT_OUT = ("round", "clients", "refused", "alarms", "idle", "clipped")


def numbers(row: Row) -> dict[str, float]:
    """Every finite number of a row by its path, such as models/global/accuracy, and how many alarms it has."""
    found = dict(_walk({name: value for name, value in row.items() if name not in _LEFT_OUT}, ""))
    return {**found, "alarms": float(len(row.get("alarms", ()))), "refused": float(len(row.get("refused", ())))}


def _walk(tree: Any, path: str) -> Iterator[tuple[str, float]]:
    if isinstance(tree, Mapping):
        for name, branch in tree.items():
            yield from _walk(branch, f"{path}/{name}" if path else str(name))
    elif isinstance(tree, list):
        for place, branch in enumerate(tree):
            yield from _walk(branch, f"{path}/{place}")
    elif isinstance(tree, int | float) and not isinstance(tree, bool) and math.isfinite(tree):
        yield path, float(tree)


def plain(settings: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Settings as one table with dotted keys, without those that are not set."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        key = f"{path}.{name}" if path else name
        if isinstance(value, Mapping):
            found |= plain(value, key)
        elif value is not None:
            found[key] = value if isinstance(value, int | float | str) else str(value)
    return found
