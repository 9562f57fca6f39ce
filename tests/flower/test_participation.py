"""Who took part: counted for the server's status and for the report, in federations and simulations."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flower.post import make_sites
from flower.test_seam import RUN, experiment, federate, in_body, put
from semifed import Experiment, run, write_report
from semifed.engine.flower_server import Federation
from semifed.engine.wire import Letter
from semifed.federation.serving import _Board
from semifed.report.content import content
from semifed.results.collection import collect
from semifed.results.files import write_json
from semifed.results.participation import Part, participation
from toys import TINY


def row(clients: list[int], **more: Any) -> dict[str, Any]:
    return {"clients": clients, **more}


def test_parts_are_counted_by_client_with_their_reasons() -> None:
    rows = [
        row([0, 2], stragglers={"2": "no answer before the deadline"}, refused={}, clipped=[0]),
        row([2, 0], stragglers={}, refused={"2": "non_finite: in what is sent"}, clipped=[]),
        row([2], stragglers={}, refused={"2": "non_finite: in what is kept"}, clipped=[]),
        row([5]),  # of a run from before there was a gate
    ]
    why = {"no answer before the deadline": 1, "non_finite": 2}
    found = participation(rows)
    assert found == {0: Part(0, 2, 0, 0, 1, {}), 2: Part(2, 3, 1, 2, 0, why), 5: Part(5, 1, 0, 0, 0, {})}
    assert [one.counted for one in found.values()] == [2, 0, 1]


@pytest.fixture(scope="module")
def bumpy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three sites; in the first round b sends NaN, in the second it is late; all test on images of their own."""
    folder = tmp_path_factory.mktemp("bumpy")
    words = ("federation.quorum=2", "federation.min_sites=2", "federation.deadline=0.3", "federation.site_test=0.3")
    post, bad = make_sites(folder, 3), in_body(put(lambda value: value * math.nan))

    def tamper(site: str, letter: Letter) -> Letter | None:
        if site == "b" and letter.head["kind"] == "trained" and letter.head["round"] < 2:
            return bad(letter) if letter.head["round"] == 0 else None
        return letter

    post.tamper = tamper
    federate(experiment("fedsiam-d", *words), post, folder / "run")
    write_json(folder / "run" / "federation.json", {"run": RUN, "sites": ["a", "b<i>", "c", "late-comer"]})
    return folder / "run"


def test_a_report_of_a_federation_names_its_sites(bumpy: Path, tmp_path: Path) -> None:
    found = content(collect([bumpy]))
    (parts,) = found["parts"]
    assert parts["sites"]
    assert [one["name"] for one in parts["members"]] == ["a", "b<i>", "c", "late-comer"]
    assert [(one["drawn"], one["counted"], one["late"], one["refused"]) for one in parts["members"]] == [
        (3, 3, 0, 0), (3, 1, 1, 1), (3, 3, 0, 0), (0, 0, 0, 0)
    ]  # fmt: skip
    curves = found["groups"][0]["curves"]
    assert (curves["late"]["mean"], curves["refused"]["mean"]) == ([0, 1, 0], [1, 0, 0])
    assert "accuracy/target at the sites" in curves
    text = write_report([bumpy], tmp_path / "report.html").read_text("utf-8")
    assert "<h2>Who took part</h2>" in text
    assert "<td>b&lt;i&gt;</td>" in text
    assert "non_finite (1), no answer before the deadline (1)" in text


def test_a_report_of_a_simulation_names_the_clients_with_whom_something_was(tmp_path: Path) -> None:
    calm = Experiment.read(None, [*TINY, "method=fedavg"])
    run(calm, tmp_path / "calm")
    assert content(collect([tmp_path / "calm"]))["parts"] == []
    assert "Who took part" not in write_report([tmp_path / "calm"], tmp_path / "calm.html").read_text("utf-8")
    run(calm.replace("attack.kind=nans", "attack.clients=[1]"), tmp_path / "hostile")
    (parts,) = content(collect([tmp_path / "hostile"]))["parts"]
    (client,) = parts["members"]
    assert (parts["sites"], client["name"]) == (False, "1")
    assert client["refused"] == client["drawn"] == client["why"]["non_finite"] > 0
    assert "<td>client 1</td>" in write_report([tmp_path / "hostile"], tmp_path / "x.html").read_text("utf-8")


def test_the_status_has_the_same_counts(bumpy: Path) -> None:
    clients: Any = SimpleNamespace(joined={"a": {}, "b": {}}, connected={"a"})
    board, (stored,) = _Board(), collect([bumpy])
    board._rows = stored.rows
    board.show(Federation(RUN, ["a", "b", "c"]), clients)
    told = board.state()
    assert told["round"] == 3
    assert told["bytes"] == stored.summary["bytes"]
    assert told["sites"]["a"] == {"connected": True, "joined": True, "drawn": 3, "straggled": 0, "refused": 0}
    assert told["sites"]["b"] == {"connected": False, "joined": True, "drawn": 3, "straggled": 1, "refused": 1}
    assert not told["sites"]["c"]["joined"]
