"""What leaves a client is listed as it is: of every method the bytes are those that a run counts."""

import json
from pathlib import Path

import pytest

import semifed
from semifed.experiment import Experiment
from semifed.methods import METHODS
from toys import call


def experiment(name: str, *more: str) -> Experiment:
    words = ["data=synthetic", "net=mlp", "scenario.clients=6", "train.clients_per_round=1", "train.rounds=1"]
    words += [
        f"method={name}",
        f"scenario.labels={METHODS[name].labels[0]}",
        "client.steps=1",
        "scenario.validation=20",
    ]
    return Experiment.read(None, [*words, *more])


@pytest.mark.parametrize("name", sorted(METHODS))
def test_what_is_listed_is_what_a_run_sends(name: str) -> None:
    found, run = semifed.leaving(experiment(name)), semifed.run(experiment(name))
    row = run.rows[0]
    if any(one.partly for one in found.up):
        assert row["bytes"]["up"] <= found.bytes
    else:
        assert row["bytes"]["up"] == found.bytes
    assert row["bytes"]["down"] == sum(found.down.values())
    assert {one.part for one in found.up} == set(METHODS[name].up)
    assert [what for what in found.stays if "kept" in what] == [
        f"{part} (kept between visits)" for part in METHODS[name].keeps
    ]
    told = {f"{kind}.{one}" for kind in ("terms", "notes") for one in row[kind]}
    assert told <= set(found.counts)


def test_the_command_lists_layers_bytes_and_what_stays(tmp_path: Path) -> None:
    file = tmp_path / "exp.toml"
    file.write_text(experiment("fedcon").toml(), encoding="utf-8")
    said = call("check", str(file))
    assert said.code == 0, said
    assert "what leaves a client at each visit (fedcon, net mlp)" in said.out
    for line in ("sends   backbone / features", "stays   projector (kept", "tells   examples:", "gets    backbone"):
        assert line in said.out, said.out
    assert "sends   head" not in said.out
    told = json.loads(
        call("check", str(file), "--set", "method=local-sl", "--set", "scenario.labels=client", "--json").out
    )
    assert told["leaves"]["bytes"] == 0
    assert told["findings"] == []
    private = call("check", str(file), "--set", "privacy.clip=1.0")
    assert "differential privacy: on" in private.out


def test_a_method_alone_is_asked_and_then_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("semifed.conformance.check", lambda _: [])
    said = call("check", "fedmatch")
    assert said.code == 0
    assert "bytes at most" in said.out
