"""Settings as frozen dataclasses that refuse what cannot be meant, and TOML in and out.

A table of an experiment file is a subclass of `Settings`; its fields are the keys. `option` gives a field
its help text and its range. Every refusal names the key, what was given and what is expected.
"""

import dataclasses
import difflib
import importlib
import json
import operator
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

from semifed.errors import SettingError

_T = TypeVar("_T")
_ENDLESS = 2**63  # no count or rate is so large, and tensors cannot hold it


def option(
    default: Any,
    help: str,
    *,
    least: float | None = None,
    most: float | None = None,
    above: float | None = None,
    below: float | None = None,
) -> Any:
    """A field with a default, a help text and a range."""
    limits = {"least": least, "most": most, "above": above, "below": below}
    given = {name: limit for name, limit in limits.items() if limit is not None}
    return dataclasses.field(default=default, metadata={"help": help, **given})


@dataclasses.dataclass(frozen=True)
class Settings:
    """One table of an experiment, checked when it is made."""

    table: ClassVar[str] = ""

    def __post_init__(self) -> None:
        hints = typing.get_type_hints(type(self))
        for field in dataclasses.fields(self):
            place = f"{self.table}.{field.name}" if self.table else field.name
            value = conform(getattr(self, field.name), hints[field.name], place)
            object.__setattr__(self, field.name, value)
            _check_range(value, field.metadata, place)


def _check_range(value: Any, limits: Mapping[str, Any], place: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    tests = {
        "least": ("at least", operator.ge),
        "above": ("above", operator.gt),
        "most": ("at most", operator.le),
        "below": ("below", operator.lt),
    }
    stated = {name: test for name, test in tests.items() if name in limits}
    within = all(holds(value, limits[name]) for name, (_, holds) in stated.items())
    if within and abs(value) < _ENDLESS:
        return
    allowed = " and ".join(f"{words} {limits[name]}" for name, (words, _) in stated.items())
    reasonable = "a number of reasonable size" if within or not allowed else allowed
    raise SettingError(f"{place}: must be {reasonable}, not {str(value)[:40]}")


def conform(value: Any, hint: Any, place: str) -> Any:
    """The value as the type a field has, or an error that names the place."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        if value not in arguments:
            raise SettingError(f"{place}: {value!r} is unknown; {nearest(str(value), arguments)}")
        return value
    if origin in (typing.Union, types.UnionType):
        inner = next(argument for argument in arguments if argument is not type(None))
        # TOML has no word for nothing; without one a number that a file sets could not be taken back.
        if type(None) in arguments and (value is None or (value == "none" and inner in (int, float))):
            return None
        return conform(value, inner, place)
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise SettingError(f"{place}: expected a list, not {value!r}")
        return tuple(conform(item, arguments[0], place) for item in value)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return value if isinstance(value, hint) else build(hint, value, place)
    return _conform_plain(value, hint, place)


def _conform_plain(value: Any, hint: type, place: str) -> Any:
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(max(min(value, _ENDLESS), -_ENDLESS))  # what is beyond is out of any range
    if not isinstance(value, hint) or (hint is int and isinstance(value, bool)):
        words = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
        raise SettingError(f"{place}: expected {words.get(hint, hint.__name__)}, not {value!r}")
    return value


def build(kind: type[_T], table: Any, place: str = "") -> _T:
    """A settings dataclass from a table; an unknown key is an error that names the nearest known one."""
    if not isinstance(table, Mapping):
        raise SettingError(f"{place}: expected a table, not {table!r}")
    known = {field.name: field for field in dataclasses.fields(typing.cast(Any, kind)) if field.init}
    hints = typing.get_type_hints(kind)
    values = {}
    for name, value in table.items():
        path = f"{place}.{name}" if place else name
        if name not in known:
            raise SettingError(f"{path}: no such setting; {nearest(name, known)}")
        values[name] = conform(value, hints[name], path)
    for name, field in known.items():
        if name not in values and field.default is field.default_factory is dataclasses.MISSING:
            raise SettingError(f"{place}.{name}: must be given")
    return kind(**values)


def nearest(name: str, known: Iterable[Any]) -> str:
    """'did you mean ...' where a known name is near, else all of them."""
    names = [str(one) for one in known]
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return f"did you mean {near[0]}?" if near else f"known are: {', '.join(names)}"


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file, with or without a byte order mark."""
    try:
        return tomllib.loads(path.read_bytes().decode("utf-8-sig"))
    except FileNotFoundError:
        raise SettingError(f"{path}: there is no such file") from None
    except IsADirectoryError:
        raise SettingError(f"{path}: is a folder, not an experiment file") from None
    except OSError as error:
        raise SettingError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SettingError(f"{path}: is not UTF-8 text; save it as UTF-8") from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits is a plain ValueError
        raise SettingError(f"{path}: is not valid TOML: {error}") from None


def write_toml(tables: Mapping[str, Any]) -> str:
    """Plain values first, then one section a table; what is None is left out."""
    plain = {name: value for name, value in tables.items() if not isinstance(value, Mapping) and value is not None}
    lines = [f"{name} = {toml_value(value)}" for name, value in plain.items()]
    for name, table in tables.items():
        if isinstance(table, Mapping):
            rows = [f"{key} = {toml_value(value)}" for key, value in table.items() if value is not None]
            lines += ["", f"[{name}]", *rows]
    return "\n".join(lines).lstrip("\n") + "\n"


def toml_value(value: Any) -> str:
    """A plain value, or a list of such, as TOML writes it."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml_value, value))}]"
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # TOML wants it escaped, JSON does not


def parse_value(text: str) -> Any:
    """A value given on the command line: TOML where it is TOML, else plain text."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return parsed["value"] if len(parsed) == 1 else text


def override(tables: dict[str, Any], assignment: str) -> None:
    """Apply one ``key=value`` or ``table.key=value`` of the command line."""
    path, sign, text = assignment.partition("=")
    if not sign or not path.strip():
        raise SettingError(f"--set {assignment}: expected key=value, such as train.rounds=50")
    *parents, name = path.strip().split(".")
    for parent in parents:
        inner = tables.setdefault(parent, {})
        if isinstance(inner, str):  # method = "fedavg" and method.repeat=2 go together
            inner = tables[parent] = {"name": inner}
        if not isinstance(inner, dict):
            raise SettingError(f"--set {assignment}: {parent} is a plain value, not a table")
        tables = inner
    tables[name] = parse_value(text.strip())


def find_named(name: str, key: str) -> Any:
    """What a user's ``module:Class`` stands for, imported, the current folder too; None where the module lacks it."""
    module_name, _, inner = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # a user's module may fail in any way
        reason = f"{type(error).__name__}: {error}"
        raise SettingError(f"{key}: cannot import {module_name!r} of {name!r}: {reason}") from None
    try:
        return operator.attrgetter(inner)(module)
    except AttributeError:
        return None
