"""A method of one's own: the skeleton, what `check` says of a bad one, and whose fault an error is."""

import importlib
import json
from pathlib import Path

import pytest

from semifed import Experiment, conformance, run
from semifed.errors import OwnCodeError
from semifed.experiment import find_method
from semifed.methods.base import Descend, Method
from semifed.methods.fedavg import FedAvg
from semifed.skeletons import names_of, new_method
from toys import TINY, call, tiny


def written(here: Path, body: str, name: str = "mine") -> Method:
    """A method in a file of its own, on top of FedAvg."""
    head = [
        "from dataclasses import dataclass",
        "from semifed.batch import Pool",
        "from semifed.methods.base import Descend, Follow, Method",
        "from semifed.methods.fedavg import FedAvg",
        "",
    ]
    (here / f"{name}.py").write_text("\n".join(head) + body)
    importlib.invalidate_caches()
    return find_method(f"{name}:Mine")()


# the skeleton


@pytest.mark.parametrize(
    ("name", "wanted"),
    [("my-method", ("my_method", "MyMethod")), ("FedX2", ("fed_x2", "FedX2")), ("a b", ("a_b", "AB"))],
)
def test_names(name: str, wanted: tuple[str, str]) -> None:
    assert names_of(name) == wanted


@pytest.mark.parametrize("name", ["", "2fast", "class", "../up", "a/b", "mé:thode"])
def test_a_name_that_cannot_be_a_file_is_refused(name: str, tmp_path: Path) -> None:
    said = call("new", "method", name, "--out", str(tmp_path))
    assert said.code == 2
    assert "is no name for a Python file" in said.line
    assert not list(tmp_path.iterdir())


def test_the_skeleton_runs_and_is_well_formed(here: Path) -> None:
    said = call("new", "method", "my-method")
    assert said.code == 0
    assert "semifed check my_method:MyMethod" in said.out
    method = find_method("my_method:MyMethod")()
    assert conformance.look(method).passed
    for question in ("every_term_pulls", "unlabelled_data_matter"):
        assert conformance.ask(question, method).passed
    said = call(*tiny(here / "run", "method=my_method:MyMethod", "train.rounds=2"), "--json")
    assert said.code == 0, said.err
    assert json.loads(said.out)["status"] == "finished"


def test_nothing_is_written_over(here: Path) -> None:
    first = json.loads(call("new", "method", "mine", "--json").out)
    assert first == {"method": "mine:Mine", "files": ["mine.py", "test_mine.py"]}
    (here / "mine.py").write_text("my work")
    said = call("new", "method", "mine")
    assert said.code == 4
    assert "mine.py: is there already" in said.line
    assert (here / "mine.py").read_text() == "my work"


@pytest.mark.slow
def test_the_skeletons_own_test_passes(here: Path) -> None:
    new_method("my-method", here)
    assert pytest.main(["-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(here / "test_my_method.py")]) == 0


# what check says


BAD = {
    "no reads": ("\nclass Mine(Method):\n    pass\n", "Mine has no reads()"),
    "no dataclass": ("\nclass Mine(FedAvg):\n    mu: float = 0.1\n", "put @dataclass(frozen=True) above the class"),
    "views as text": (
        "\nclass Mine(FedAvg):\n    def reads(self):\n        return {'labelled': Pool('labelled', 'weak')}\n",
        "write a tuple, such as (\"weak\",)",
    ),
    "unknown view": (
        "\nclass Mine(FedAvg):\n    def reads(self):\n        return {'labelled': Pool('labelled', ('strng',))}\n",
        "did you mean strong?",
    ),
    "no tuple of moves": (
        "\nclass Mine(FedAvg):\n    def client(self):\n        return Descend(('net',), self.supervised)\n",
        "must give a tuple of moves",
    ),
    "part that is not there": (
        "\nclass Mine(FedAvg):\n    def client(self):\n        return (Descend(('nett',), self.supervised),)\n",
        "names the part 'nett', but start() has net",
    ),
    "no terms": (
        "\nclass Mine(FedAvg):\n    def supervised(self, net, parts, batch):\n"
        "        return super().supervised(net, parts, batch)['cross_entropy']\n",
        "it must give named terms",
    ),
    "kept but not enrolled": ("\nclass Mine(FedAvg):\n    keeps = ('memory',)\n", "but enroll() has nothing"),
    "an error": (
        "\nclass Mine(FedAvg):\n    def supervised(self, net, parts, batch):\n        return 1 / 0\n",
        "Mine.supervised (line 8 of mine.py) raised ZeroDivisionError",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_check_says_in_plain_words_what_does_not_fit(case: str, here: Path) -> None:
    body, message = BAD[case]
    written(here, body)
    said = call("check", "mine:Mine")
    assert said.code == 1
    assert message in said.out
    assert "to do: " in said.out
    assert "fits_together" in said.line


def test_a_failed_question_comes_with_what_was_asked_and_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    finding = conformance.Finding("bytes_add_up", False, "0 bytes are sent")
    monkeypatch.setattr(conformance, "check", lambda _: [finding])
    said = call("check", "fedavg")
    assert said.code == 1
    assert [line.split(":")[0].strip() for line in said.out.splitlines()[1:]] == ["found", "asked", "to do"]
    told = json.loads(call("check", "fedavg", "--json").out)
    assert told["leaves"] is None
    assert told["findings"][0]["advice"] == conformance.ADVICE["bytes_add_up"]


def test_every_question_has_advice_and_a_sentence() -> None:
    assert set(conformance.ADVICE) == set(conformance.QUESTIONS)
    assert all(conformance.Finding(name, False, "").meaning for name in conformance.QUESTIONS)


# whose fault


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_in_ones_own_method_names_file_and_line(here: Path, workers: int) -> None:
    written(
        here,
        "\nclass Mine(FedAvg):\n    def supervised(self, net, parts, batch):\n        return parts['psi']\n",
    )
    said = call(*tiny(here / "run", "method=mine:Mine", f"engine.workers={workers}"))
    assert said.code == 5
    assert f"{here / 'mine.py'}, line 8, in supervised: KeyError: 'psi'" in said.line


def test_python_sees_the_cause(here: Path) -> None:
    method = written(here, "\nclass Mine(FedAvg):\n    def client(self):\n        raise ValueError('not yet')\n")
    experiment = Experiment.of({**Experiment.read(None, TINY).tables(), "method": method})
    with pytest.raises(OwnCodeError, match=r"mine.py, line 8, in client: ValueError: not yet") as caught:
        run(experiment)
    assert isinstance(caught.value.__cause__, ValueError)


def test_an_error_of_ours_is_not_blamed_on_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FedAvg, "client", lambda self: (Descend(("net",), self.nothing),))
    with pytest.raises(AttributeError):
        run(Experiment.read(None, TINY))
