"""A quick turn of the fuzzing of parsers: the corpus and spoilt copies of it; `make fuzz` takes ten minutes each."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent


def parsers() -> ModuleType:
    spec = importlib.util.spec_from_file_location("parsers", ROOT / "fuzz" / "parsers.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["parsers"] = module
    spec.loader.exec_module(module)
    return module


FUZZ = parsers()


@pytest.mark.parametrize("name", FUZZ.TARGETS)
def test_57_spoilt_bytes_are_refused_in_our_own_words(name: str) -> None:
    assert FUZZ.replay(name, 40) > 40


@pytest.mark.parametrize("name", FUZZ.TARGETS)
def test_57_a_parser_reads_what_the_corpus_is_made_of(name: str) -> None:
    for data in FUZZ.seeds()[name][:1]:
        FUZZ.TARGETS[name](data)


def test_57_the_corpus_is_small() -> None:
    assert sum(path.stat().st_size for path in FUZZ.CORPUS.rglob("*") if path.is_file()) < 100_000
