"""What a site sends back, looked at before it is used: it must be an answer to this round, of this shape."""

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from semifed.engine.assemble import Assembly
from semifed.engine.local import Outcome, Task
from semifed.engine.wire import Letter, LetterError
from semifed.params import Parts
from semifed.payload import Partial, unpack

MOST_NAMES, MOST_NUMBERS = 100, 10_000


def template(assembly: Assembly, task: Task) -> Parts:
    """An upload of the right names, shapes and types: that of a client which takes no step."""
    method = assembly.experiment.method
    return method.upload(assembly.net, method.start(task.down, task.kept), task.down)


def read_trained(letter: Letter, run: str, round: int, like: Parts, limit: int) -> Outcome:
    """The outcome in a letter; everything in it comes from outside."""
    head = letter.head
    if head["kind"] == "failed":
        raise LetterError(f"the site reports: {str(head.get('reason'))[:300]}")
    if head["kind"] != "trained" or head.get("run") != run or head.get("round") != round:
        raise LetterError("the answer is not of this round")
    examples = head.get("examples")
    if type(examples) is not int or not 0 <= examples < 2**40:
        raise LetterError(f"examples: {str(examples)[:40]} is not a number of images")
    terms, notes = _numbers(head.get("terms"), "terms"), _numbers(head.get("notes"), "notes")
    if any(isinstance(one, list) for one in terms.values()):
        raise LetterError("terms: a loss is one number")
    up = unpack(letter.body, limit)
    _compare(up, like, "update")
    return Outcome(up, {}, examples, terms, notes)


def _numbers(given: Any, name: str) -> dict[str, Any]:
    """Names with numbers or lists of them; what the site could not count (None) is not a number here either."""
    if not isinstance(given, dict) or len(given) > MOST_NAMES:
        raise LetterError(f"{name}: not a table of numbers")
    found: dict[str, Any] = {}
    for key, value in given.items():
        values = value if isinstance(value, list) else [value]
        if len(values) > MOST_NUMBERS or len(key) > 100:
            raise LetterError(f"{name}: too long")
        if not all(one is None or (isinstance(one, int | float) and not isinstance(one, bool)) for one in values):
            raise LetterError(f"{name}.{key[:40]}: not a number")
        plain = [math.nan if one is None else float(one) for one in values]
        found[key] = plain if isinstance(value, list) else plain[0]
    return found


def _compare(given: Any, like: Any, place: str) -> None:
    """The same names, shapes and types all the way down, or an error that says where not."""
    if isinstance(like, Tensor):
        if not isinstance(given, Tensor) or given.shape != like.shape or given.dtype != like.dtype:
            raise LetterError(f"{place}: expected {_kind(like)}, not {_kind(given)}")
        return
    if isinstance(like, Partial):
        if not isinstance(given, Partial):
            raise LetterError(f"{place}: expected a part of which some is withheld, not {_kind(given)}")
        _compare(given.values, like.values, place)
        _compare(given.sent, like.sent, f"mask of {place}")
        return
    if not isinstance(given, Mapping) or isinstance(given, Partial):
        raise LetterError(f"{place}: expected named tensors, not {_kind(given)}")
    missing, extra = [name for name in like if name not in given], [name for name in given if name not in like]
    if missing or extra:
        raise LetterError(f"{place}: {'lacks ' + missing[0] if missing else 'has ' + extra[0][:40] + ' too many'}")
    for name in like:
        _compare(given[name], like[name], f"{place}/{name}")


def _kind(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    return type(value).__name__
