"""Every method of the table answers every question, and the table holds every method that is written."""

import importlib
import inspect
from pathlib import Path

import pytest

from semifed import methods
from semifed.conformance import QUESTIONS, ask
from semifed.methods import METHODS
from semifed.methods.base import Method

FILES = {path.stem: path for path in Path(methods.__file__).parent.glob("*.py")}
SHARED = {"__init__", "base", "averaging", "losses", "neighbours", "schedules", "selection", "sparsity"}
"""What methods are made of; all other files are a paper each."""


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("name", METHODS)
def test_method_passes(name: str, question: str) -> None:
    finding = ask(question, METHODS[name]())
    assert finding.passed, finding.detail


def written_in(file: str) -> set[type[Method]]:
    """The methods that a file defines: public classes that say what a client does."""
    module = importlib.import_module(f"semifed.methods.{file}")
    own = {kind for name, kind in inspect.getmembers(module, inspect.isclass) if kind.__module__ == module.__name__}
    return {kind for kind in own if issubclass(kind, Method) and _is_whole(kind) and not kind.__name__.startswith("_")}


def _is_whole(kind: type[Method]) -> bool:
    return kind.client is not Method.client and kind.reads is not Method.reads


def test_table_holds_every_method_that_is_written() -> None:
    assert set(METHODS.values()) == {kind for file in FILES for kind in written_in(file)}


@pytest.mark.parametrize("file", sorted(FILES.keys() - SHARED))
def test_file_of_a_paper(file: str) -> None:
    assert written_in(file)
    assert "Differs from the authors' code" in (importlib.import_module(f"semifed.methods.{file}").__doc__ or "")


@pytest.mark.parametrize("file", sorted(SHARED))
def test_shared_file_holds_no_method(file: str) -> None:
    assert not written_in(file)
