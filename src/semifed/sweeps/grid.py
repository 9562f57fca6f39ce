"""The runs of a sweep: an experiment, the settings it is varied over, and a readable name for each point.

over = [axis("seed=0..2"), axis("method=fedavg+,fedcon")]
points(lambda assignments: experiment.replace(*assignments), over)[0].name == "seed=0,method=fedavg+"
"""

import hashlib
import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from semifed.errors import SettingError
from semifed.experiment import Experiment
from semifed.settings import toml_value

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
    twice = next((value for value, count in Counter(values).items() if count > 1), None)
    if twice is not None:
        raise SettingError(f"--over {text}: {twice} stands there twice; name it once")
    return Axis(key.strip(), tuple(values))


def _split(text: str) -> list[str]:
    """The parts between commas that stand in no bracket and no quotes; nothing, if one of these is never closed."""
    parts, depth, quote = [""], 0, ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'" and (depth or not parts[-1].strip()):  # inside a word it is an apostrophe
            quote = letter
        else:
            depth += (letter in "[{") - (letter in "]}")
        if letter == "," and not depth and not quote:
            parts.append("")
        else:
            parts[-1] += letter
    return [] if depth or quote else [part.strip() for part in parts]


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
    return [Axis(key, _written(key, values)) for key, values in over.items()]


def _written(key: str, values: Iterable[Any]) -> tuple[str, ...]:
    """Values as they are written on the command line."""
    if isinstance(values, str | Mapping) or not (given := list(values)):
        raise SettingError(f"over: {key} is varied over a list of values, not {values!r}")
    try:
        return tuple(map(_text, given))
    except TypeError:
        raise SettingError(f"over: {key} takes names, numbers and lists of them, not {given!r}") from None


def _text(value: Any) -> str:
    """Text and paths as they are, everything else as in TOML; a number of numpy is a number."""
    plain = value.item() if hasattr(value, "item") else value
    if isinstance(plain, str | Path):
        return str(plain)
    return "none" if plain is None else toml_value(plain)


def points(
    make: Callable[[Sequence[str]], Experiment], over: Sequence[Axis], always: Sequence[str] = ()
) -> list[Point]:
    """Every combination, the first axis slowest; each is checked now, so that a wrong one is not found at midnight.

    `make` makes an experiment of assignments: those of the combination, and those that hold `always`.
    """
    twice = next((one.key for one in over if sum(other.key == one.key for other in over) > 1), None)
    if twice:
        raise SettingError(f"--over {twice}: is given twice; put its values into one")
    made, seen = list[Point](), dict[str, str]()
    for values in itertools.product(*(one.values for one in over)):
        assignments = [f"{one.key}={value}" for one, value in zip(over, values, strict=True)]
        try:
            made.append(Point(point_name(assignments), make(_names_first([*always, *assignments]))))
        except SettingError as error:
            raise SettingError(f"{', '.join(assignments)}: {error}") from None
        same = json.dumps(made[-1].experiment.tables(), sort_keys=True)
        if same in seen:  # two seeds that are one would make a spread of nothing
            raise SettingError(f"--over {', '.join(assignments)}: is the same experiment as {seen[same]}; name it once")
        seen[same] = made[-1].name
    return made


def _names_first(assignments: Sequence[str]) -> list[str]:
    """A method or net that is named starts from its own defaults; options of it come after."""
    return sorted(assignments, key=lambda one: one.partition("=")[0].strip() not in ("method", "net"))


def point_name(assignments: Sequence[str]) -> str:
    """A name that people read and file systems take; what is lost in it comes back as a hash."""
    name = ",".join(assignments) or "run"
    safe = re.sub(r"[^\w.,=+-]+", "_", name, flags=re.ASCII)
    if safe == name and len(name) <= _LONGEST:
        return name
    return f"{safe[:_LONGEST]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
