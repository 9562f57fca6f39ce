"""One battery of questions for every method: `check` puts them all, and a finding says in a sentence what is wrong.

A question is a function of a method that yields complaints; the first one is the finding.
"""

import inspect
import traceback
from collections.abc import Callable, Iterator
from typing import NamedTuple

from semifed.conformance.engines import (
    engines_agree,
    nothing_is_changed_in_place,
    padding_is_nothing,
    resume_is_exact,
)
from semifed.conformance.exchange import bytes_add_up, merging_is_fair, models_are_complete
from semifed.conformance.kept import kept_is_private
from semifed.conformance.learning import own_data_matters, unlabelled_data_matter
from semifed.conformance.pulls import every_term_pulls
from semifed.conformance.world import DoesNotApply
from semifed.methods.base import Method

Question = Callable[[Method], Iterator[str]]

QUESTIONS: dict[str, Question] = {
    question.__name__: question
    for question in (
        engines_agree,
        own_data_matters,
        unlabelled_data_matter,
        every_term_pulls,
        padding_is_nothing,
        kept_is_private,
        bytes_add_up,
        resume_is_exact,
        nothing_is_changed_in_place,
        merging_is_fair,
        models_are_complete,
    )
}


class Finding(NamedTuple):
    """The answer to one question."""

    question: str
    passed: bool
    detail: str


def check(method: Method) -> list[Finding]:
    """The findings of all questions."""
    return [ask(question, method) for question in QUESTIONS]


def ask(question: str, method: Method) -> Finding:
    """Put one question to a method; a method that breaks down has failed it."""
    try:
        complaint = next(QUESTIONS[question](method), None)
    except DoesNotApply as reason:
        return Finding(question, True, f"does not apply: {reason}")
    except Exception as error:
        problem = (str(error).strip() or "no message").splitlines()[0]
        return Finding(question, False, f"{_place(method, error)} raised {type(error).__name__}: {problem}")
    return Finding(question, complaint is None, complaint or "")


def _place(method: Method, error: Exception) -> str:
    """Where in the method's own file an error was raised, as far as it was there."""
    own = inspect.getfile(type(method))
    lines = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == own]
    name = type(method).__name__
    return f"{name}.{lines[-1].name} (line {lines[-1].lineno})" if lines else name
