"""Each question of the battery can fail: for every one there is a broken method that it catches, and says why."""

import pytest
from torch import Tensor

from semifed.batch import Batch
from semifed.conformance import QUESTIONS, ask, check
from semifed.methods.base import Method, Terms
from semifed.nets.net import Pass
from semifed.params import Parts

from . import mutants
from .healthy import Healthy

CAUGHT: list[tuple[str, type[Method], str]] = [
    ("engines_agree", mutants.BranchesOnValues, "BranchesOnValues.average (line "),
    ("engines_agree", mutants.UsesWithheld, "term/near differs"),
    ("own_data_matters", mutants.UploadsReceived, "client 0 uploads the same"),
    ("own_data_matters", mutants.TrainsOnLeftovers, "client 0 uploads the same"),
    ("unlabelled_data_matter", mutants.IgnoresUnlabelled, "though pool unlabelled is read"),
    ("every_term_pulls", mutants.TeacherAgainstTeacher, "client: term consistency has no gradient"),
    ("every_term_pulls", mutants.ForgetsDetach, "term consistency sends a gradient into teacher"),
    ("every_term_pulls", mutants.TrainsTeacher, "client: part teacher both follows and descends"),
    ("every_term_pulls", mutants.TrainsUnused, "part shift is trained, but no term pulls on it"),
    ("padding_is_nothing", mutants.CountsPadding, "consistency differs"),
    ("padding_is_nothing", mutants.NormalisesPadding, "when the image in the padding rows is another"),
    ("padding_is_nothing", mutants.DividesByNothing, "client 2, which holds 5 labelled and 0 unlabelled samples"),
    ("padding_is_nothing", mutants.DividesBySure, "term/consistency is not a number"),
    ("kept_is_private", mutants.SharesShift, "all clients keep the same shift"),
    ("kept_is_private", mutants.SendsShift, "keeps as shift/by goes up as report/moved"),
    ("kept_is_private", mutants.ForgetsKept, "makes no difference to its next visit"),
    ("bytes_add_up", mutants.MergesUnsent, "the server merges values that were not sent"),
    ("bytes_add_up", mutants.SendsUndeclared, "part report is sent but not declared"),
    ("bytes_add_up", mutants.SendsNothing, "0 bytes are sent"),
    ("resume_is_exact", mutants.ThrowsDice, "when the run is done"),
    ("resume_is_exact", mutants.CountsOnTheSide, "when the run is done"),
    ("resume_is_exact", mutants.KeepsTuple, "server/seen"),
    ("nothing_is_changed_in_place", mutants.ShrinksInPlace, "client 0 writes into what it was given: kept/shift/by"),
    ("nothing_is_changed_in_place", mutants.MergesInPlace, "merging writes into what it was given: server/net"),
    ("merging_is_fair", mutants.MergesInTurn, "the server's model/global/"),
    ("models_are_complete", mutants.CountsInFloats, "server part rounds was int64 scalar and became float32 scalar"),
    ("models_are_complete", mutants.ForgetsHead, "model global lacks head."),
]


@pytest.mark.parametrize("question", QUESTIONS)
def test_healthy_method_passes(question: str) -> None:
    finding = ask(question, Healthy())
    assert finding.passed, finding.detail


@pytest.mark.parametrize(("question", "mutant", "detail"), CAUGHT, ids=lambda value: getattr(value, "__name__", None))
def test_mutant_is_caught(question: str, mutant: type[Method], detail: str) -> None:
    finding = ask(question, mutant())
    assert not finding.passed
    assert detail in finding.detail


def test_every_question_catches_something() -> None:
    assert {question for question, _, _ in CAUGHT} == set(QUESTIONS)


def test_every_mutant_is_asked() -> None:
    written = {kind for kind in vars(mutants).values() if isinstance(kind, type) and issubclass(kind, mutants.Ailing)}
    assert {mutant for _, mutant, _ in CAUGHT} == written - {mutants.Ailing}


def test_no_method_can_see_a_hidden_label() -> None:
    shown: list[Tensor] = []

    class Spying(Healthy):
        def loss(self, net: Pass, parts: Parts, batch: Batch) -> Terms:
            shown.append(batch.rows("unlabelled").y)
            return super().loss(net, parts, batch)

    assert ask("unlabelled_data_matter", Spying()).passed
    assert shown
    assert all(bool((y == -1).all()) for y in shown)


def test_check_puts_every_question() -> None:
    assert [finding.question for finding in check(mutants.ForgetsHead())] == list(QUESTIONS)
