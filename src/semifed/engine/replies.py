"""What a site sends back, read as what it must be: an answer to this round. The gate judges what is in it."""

import math
from typing import Any

from semifed.engine.local import Outcome
from semifed.engine.wire import Letter, LetterError
from semifed.payload import unpack

MOST_NAMES, MOST_NUMBERS = 100, 10_000


def read_trained(letter: Letter, run: str, round: int, limit: int) -> Outcome:
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
    return Outcome(unpack(letter.body, limit), {}, examples, terms, notes)


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
