"""What server and sites say to each other: letters of a JSON head and payload bytes, whoever carries them.

invite -> joined | refused     the experiment goes to a site, which looks whether it can and may take part
train  -> trained | failed     a round: what goes down, and what comes up
test   -> tested | failed      models go down; of the site's own test images only counts come up
"""

import hashlib
import inspect
import json
from typing import Any, NamedTuple

from semifed import __version__
from semifed.data.file_settings import kind_of
from semifed.errors import SemifedError
from semifed.experiment import Experiment, method_name
from semifed.methods.base import Method
from semifed.settings import write_toml

LONGEST_HEAD = 2**20


class Letter(NamedTuple):
    """One message: plain facts and, where there are tensors, the bytes of a payload."""

    head: dict[str, Any]
    body: bytes = b""


class LetterError(SemifedError):
    """A letter that is not what it must be."""


def write_head(head: dict[str, Any]) -> str:
    """The head as text for the wire; numbers that are not finite have no place in it."""
    return json.dumps(head, separators=(",", ":"), allow_nan=False)


def read_head(text: str) -> dict[str, Any]:
    """The head in a text from outside."""
    if len(text) > LONGEST_HEAD:
        raise LetterError(f"a head of {len(text):,} characters is over the limit of {LONGEST_HEAD:,}")
    try:
        head = json.loads(text)
    except (ValueError, RecursionError):
        raise LetterError("the head of the message is not JSON") from None
    if not isinstance(head, dict) or not isinstance(head.get("kind"), str):
        raise LetterError("the head of the message does not say what kind it is")
    return head


def identity(method: Method) -> dict[str, str]:
    """The version and the method that server and site must share, by name and by hash."""
    return {"semifed": __version__, "method": method_name(type(method)), "hash": method_hash(type(method))}


def method_hash(kind: type[Method]) -> str:
    """A hash of the source of a method and of those it builds on."""
    total = hashlib.sha256()
    for one in kind.__mro__[: kind.__mro__.index(Method) + 1]:
        module = inspect.getmodule(one)
        try:
            text = inspect.getsource(module if module is not None else one)
        except (OSError, TypeError):
            raise LetterError(f"the source of {one.__qualname__} cannot be read, so it cannot be compared") from None
        total.update(f"{one.__qualname__}\n{text}\n".encode())
    return total.hexdigest()[:16]


def difference(theirs: dict[str, Any], own: dict[str, str]) -> str:
    """What the server has and this site has not, naming both; empty if they are the same."""
    if theirs.get("semifed") != own["semifed"]:
        return f"the server has semifed {_short(theirs.get('semifed'))}, this site has {own['semifed']}"
    for name in ("method", "hash"):
        if theirs.get(name) != own[name]:
            there = f"{_short(theirs.get('method'))} ({_short(theirs.get('hash'))})"
            return f"the server has the method {there}, this site has {own['method']} ({own['hash']})"
    return ""


def _short(value: Any) -> str:
    return str(value)[:60]


def shared(experiment: Experiment) -> str:
    """The experiment as it goes to sites: what is only the server's business is left out."""
    kind = kind_of(experiment.data) if isinstance(experiment.data, str) else ""
    data = f"{kind}:the server's" if kind else "synthetic"
    return write_toml({**experiment.tables(), "data": data, "privacy": {}})
