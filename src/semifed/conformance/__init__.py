"""One battery of questions for every method: `check` puts them all, and a finding says in a sentence what is wrong.

A question is a function of a method that yields complaints; the first one is the finding.
"""

import inspect
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from semifed.conformance.engines import (
    engines_agree,
    nothing_is_changed_in_place,
    padding_is_nothing,
    resume_is_exact,
)
from semifed.conformance.exchange import bytes_add_up, merging_is_fair, models_are_complete
from semifed.conformance.form import Misshapen, first_look, try_a_round
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


ADVICE: dict[str, str] = {
    "engines_agree": "compute from what is passed in alone: no if on the values of a tensor, no .item(), no state of "
    "its own; what a Partial withholds must not be used",
    "own_data_matters": "look at upload(): does it send the part that was trained? and at reads(): does the loss use "
    "the rows of its batch?",
    "unlabelled_data_matter": "the term of the unlabelled pool has no effect: is it masked away, detached, or "
    "multiplied by 0?",
    "every_term_pulls": "a term made under torch.no_grad(), from detached tensors or from a part that the move does "
    "not name trains nothing; what a part should only follow must be detached in the loss",
    "padding_is_nothing": "take means with losses.masked_mean(values, rows.real), never .mean(), and divide by "
    "count.clamp(min=1)",
    "kept_is_private": "what is in `keeps` must come from the client's own training, not be in `up`, and be used in "
    "start()",
    "bytes_add_up": "`down` and `up` must name exactly the parts that download() and upload() give; aggregate() may "
    "use of a Partial only what is sent",
    "resume_is_exact": "keep all state in parts (tensors by name), draw with net.draw() and never from torch's or "
    "Python's own generator",
    "nothing_is_changed_in_place": "make new tensors: x = x + y, not x += y or x.add_(y), and new dicts",
    "merging_is_fair": "aggregate() may not depend on the order of the clients; use averaging.mean with weights",
    "models_are_complete": "models() must give whole nets, and every part must keep its names, shapes and types from "
    "round to round",
}
"""What to do where a question is answered wrongly."""

FORM = "fits_together"


class Finding(NamedTuple):
    """The answer to one question."""

    question: str
    passed: bool
    detail: str

    @property
    def meaning(self) -> str:
        """What is asked, in a sentence."""
        text = QUESTIONS[self.question].__doc__ if self.question in QUESTIONS else try_a_round.__doc__
        return (text or "").partition("\n")[0]

    @property
    def advice(self) -> str:
        """What to do if it was not passed."""
        return "" if self.passed else ADVICE.get(self.question, "mend this first; the other questions come after it")


def check(method: Method) -> list[Finding]:
    """The findings of all questions, or one alone if the method does not fit together in the first place."""
    form = look(method)
    return [ask(question, method) for question in QUESTIONS] if form.passed else [form]


def look(method: Method) -> Finding:
    """Whether a method's parts and functions fit together."""
    try:
        for complaint in first_look(method):
            return Finding(FORM, False, complaint)
        try_a_round(method)
    except Misshapen as complaint:
        return Finding(FORM, False, str(complaint))
    except Exception as error:
        return Finding(FORM, False, _broke_down(method, error))
    return Finding(FORM, True, "")


def ask(question: str, method: Method) -> Finding:
    """Put one question to a method; a method that breaks down has failed it."""
    try:
        complaint = next(QUESTIONS[question](method), None)
    except DoesNotApply as reason:
        return Finding(question, True, f"does not apply: {reason}")
    except Exception as error:
        return Finding(question, False, _broke_down(method, error))
    return Finding(question, complaint is None, complaint or "")


def _broke_down(method: Method, error: Exception) -> str:
    problem = (str(error).strip() or "no message").splitlines()[0]
    return f"{_place(method, error)} raised {type(error).__name__}: {problem}"


def _place(method: Method, error: Exception) -> str:
    """Where in the method's own file an error was raised, as far as it was there."""
    own = inspect.getfile(type(method))
    lines = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == own]
    name = type(method).__name__
    if not lines:
        return name
    return f"{name}.{lines[-1].name} (line {lines[-1].lineno} of {Path(own).name})"
