"""The runs of a sweep: an experiment, the settings it is varied over, and a readable name for each point.

over = [axis("seed=0..2"), axis("method=fedavg+,fedcon")]
points(experiment, over)[0].name == "seed=0,method=fedavg+"
"""

import hashlib
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from semifed.errors import SettingError
from semifed.experiment import Experiment

_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)")
_MOST = 100_000
_LONGEST = 120  # of a folder's name; file systems end at 255 bytes


class Axis(NamedTuple):
    """One setting and the values it takes, as they are written on the command line."""

    key: str
    values: tuple[str, ...]


class Point(NamedTuple):
    """One run of a sweep."""

    name: str
    experiment: Experiment


def axis(text: str) -> Axis:
    """An axis as `--over` gives it: key=a,b,c or key=0..4 (both ends included)."""
    key, sign, rest = text.partition("=")
    values = [part for item in _split(rest) for part in _expand(item, text)]
    if not sign or not key.strip() or not all(values) or not values:
        raise SettingError(f"--over {text}: expected key=value,value or key=0..4, such as seed=0..2")
    twice = next((value for value in values if values.count(value) > 1), None)
    if twice is not None:
        raise SettingError(f"--over {text}: {twice} stands there twice; name it once")
    return Axis(key.strip(), tuple(values))


def _split(text: str) -> list[str]:
    """The parts between commas that stand in no bracket and no quotes."""
    parts, depth, quote = [""], 0, ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        else:
            depth += (letter in "[{") - (letter in "]}")
        if letter == "," and not depth and not quote:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def _expand(item: str, text: str) -> Iterable[str]:
    match = _RANGE.fullmatch(item)
    if not match:
        return [item]
    first, last = int(match[1]), int(match[2])
    if not first <= last < first + _MOST:
        raise SettingError(f"--over {text}: {item} goes from a smaller number to a larger one, {_MOST:,} at most")
    return map(str, range(first, last + 1))


def axes(over: Mapping[str, Iterable[Any]]) -> list[Axis]:
    """Axes from Python: each setting with its values."""
    return [axis(f"{key}={','.join(map(_written, values))}") for key, values in over.items()]


def _written(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def points(experiment: Experiment, over: Sequence[Axis]) -> list[Point]:
    """Every combination, the first axis slowest; each is checked now, so that a wrong one is not found at midnight."""
    twice = next((one.key for one in over if sum(other.key == one.key for other in over) > 1), None)
    if twice:
        raise SettingError(f"--over {twice}: is given twice; put its values into one")
    made = []
    for values in itertools.product(*(one.values for one in over)):
        assignments = [f"{one.key}={value}" for one, value in zip(over, values, strict=True)]
        try:
            made.append(Point(point_name(assignments), _replaced(experiment, assignments)))
        except SettingError as error:
            raise SettingError(f"{', '.join(assignments)}: {error}") from None
    return made


def _replaced(experiment: Experiment, assignments: Sequence[str]) -> Experiment:
    """A method that is named starts from its own defaults; options of it come after."""
    return experiment.replace(*sorted(assignments, key=lambda one: not one.startswith("method=")))


def point_name(assignments: Sequence[str]) -> str:
    """A name that people read and file systems take; what is lost in it comes back as a hash."""
    name = ",".join(assignments) or "run"
    safe = re.sub(r"[^\w.,=+-]+", "_", name, flags=re.ASCII)
    if safe == name and len(name) <= _LONGEST:
        return name
    return f"{safe[:_LONGEST]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
