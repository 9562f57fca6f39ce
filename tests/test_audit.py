"""What the rows say of pseudo-labels and layers: counted by hand, and never a help to a method."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

import semifed
from semifed.batch import Batch
from semifed.engine.assemble import Assembly, prepare
from semifed.engine.layers import by_layer
from semifed.engine.local import Task
from semifed.engine.rounds import begin
from semifed.errors import RunError
from semifed.methods.fedavg import FedAvg
from semifed.methods.fixmatch import FixMatch
from semifed.nets.net import Pass
from semifed.params import Parts, leaves
from semifed.payload import Partial
from semifed.results import holdings
from semifed.results.record import Row
from toys import TINY, plain


@dataclass(frozen=True)
class Always(FixMatch):
    """FixMatch whose labeller is sure of one class, whatever it sees."""

    wanted: int = 1

    def opinion(self, net: Pass, parts: Parts, batch: Batch) -> Tensor:
        opinion = super().opinion(net, parts, batch)
        hot = torch.arange(opinion.shape[-1]) == self.wanted
        return 0 * opinion + 100.0 * hot


def rows_of(*words: str, **fields: Any) -> list[Row]:
    experiment = semifed.Experiment.read(None, [*TINY, *words])
    return plain(semifed.run(dataclasses.replace(experiment, **fields)).rows)


def test_labels_of_one_class_are_right_as_often_as_that_class_is_there() -> None:
    right = [rows_of(method=Always(wanted=wanted))[0]["audit"]["correct"] for wanted in range(4)]
    assert sum(right) == pytest.approx(1)  # every row has one class of four
    assert all(0 < one < 1 for one in right)
    assert rows_of(method=Always())[0]["notes"]["coverage"] == 1


def test_a_share_of_right_labels_is_never_more_than_the_share_of_labels() -> None:
    for row in rows_of("method=fedavg-fixmatch", "method.threshold=0.3", "train.rounds=8"):
        assert 0 <= row["audit"]["correct"] <= row["notes"]["coverage"] + 1e-6
        assert 0 <= row["notes"]["agreement"] <= 1


@pytest.mark.parametrize("words", [("engine.workers=2",), ("engine.mode=single",)])
def test_the_audit_is_the_same_whoever_trains(words: tuple[str, ...]) -> None:
    base = ("method=fedavg-fixmatch", "method.threshold=0.3")
    for one, other in zip(rows_of(*base), rows_of(*base, *words), strict=True):
        assert one["audit"] == pytest.approx(other["audit"], abs=0.02 if "single" in words[0] else 0)


def test_hidden_labels_change_the_audit_and_nothing_else() -> None:
    words = ("method=fedavg-fixmatch", "method.threshold=0.3")
    experiment = semifed.Experiment.read(None, [*TINY, *words])
    assembly = prepare(experiment)
    hidden = torch.cat([torch.tensor(one.unlabelled) for one in assembly.scenario.clients])
    first = assembly.workshop.train(0, [_first_task(assembly)])[0]
    for label in range(4):
        labels = assembly.dataset.labels.index_fill(0, hidden, label)
        outcome = dataclasses.replace(assembly.workshop, labels=labels).train(0, [_first_task(assembly)])[0]
        assert (outcome.terms, outcome.notes) == (first.terms, first.notes)
        assert all(map(torch.equal, leaves(outcome.up), leaves(first.up)))
        assert outcome.audit["correct"] == pytest.approx(outcome.notes["classes"][label])


def _first_task(assembly: Assembly) -> Task:
    server = begin(assembly).server
    client = next(number for number, one in enumerate(assembly.scenario.clients) if len(one.unlabelled))
    return Task(client, {"net": server["net"]}, {}, 1)


def test_where_nobody_knows_the_labels_there_is_no_audit() -> None:
    assembly = prepare(semifed.Experiment.read(None, [*TINY, "method=fedavg-fixmatch"]))
    labels = assembly.dataset.labels.clone()
    for one in assembly.scenario.clients:
        labels[torch.tensor(one.unlabelled)] = -1
    outcome = dataclasses.replace(assembly.workshop, labels=labels).train(0, [_first_task(assembly)])[0]
    assert dict(outcome.audit) == {}
    assert "coverage" in outcome.notes


def test_methods_without_pseudo_labels_have_no_audit() -> None:
    row = rows_of("method=fedavg", "train.rounds=1")[0]
    assert row["audit"] == {}
    assert row["layers"] == {}


def test_helpers_are_heard_from_the_second_round_on() -> None:
    words = ("method=fedmatch", "scenario.labels=client", "scenario.validation=40", "train.rounds=3")
    rows = rows_of(*words)
    assert [row["notes"]["heard"] for row in rows] == [0, 1, 1]
    assert rows[0]["notes"]["agreement"] == 0
    assert 0 < rows[1]["notes"]["agreement"] <= 1
    assert set(rows[0]["layers"]) == {"sigma sent", "psi sent"}


def test_fedsiam_says_which_layers_diverge_and_are_sent() -> None:
    rows = rows_of("method=fedsiam-d", "method.phi=2", "train.rounds=6")
    names = set(rows[0]["layers"]["divergence"])
    assert len(names) > 1
    assert all(set(row["layers"]["online sent"]) == names for row in rows)
    assert all(not any(row["layers"]["online sent"].values()) for row in rows[:2])  # for phi rounds only the target
    assert any(any(row["layers"]["online sent"].values()) for row in rows[2:])
    assert all(value >= 0 for row in rows for value in row["layers"]["divergence"].values())


@dataclass(frozen=True)
class Measured(FedAvg):
    """Sends one number a layer beside its net."""

    by_layer: ClassVar[tuple[str, ...]] = ("far",)


def test_shares_by_layer_by_hand() -> None:
    def upload(sent: bool, far: float) -> Parts:
        values = {"a.weight": torch.zeros(2, 3), "a.bias": torch.zeros(2), "b.weight": torch.zeros(4)}
        masks = {"a.weight": torch.tensor(sent), "a.bias": torch.tensor([True, False]), "b.weight": torch.tensor(True)}
        return {"net": Partial(values, masks), "far": {"a": torch.tensor(far), "b": torch.tensor(0.0)}}

    found = by_layer(Measured(), [upload(True, 1.0), upload(False, 3.0)])
    assert found["net sent"] == {"a": pytest.approx((7 / 8 + 1 / 8) / 2), "b": 1.0}
    assert found["far"] == {"a": 2.0, "b": 0.0}
    assert by_layer(Measured(), []) == {}


def test_the_picture_of_a_split_is_in_the_folder(tmp_path: Path) -> None:
    experiment = semifed.Experiment.read(None, [*TINY, "train.rounds=1"])
    semifed.run(experiment, tmp_path / "run")
    found = holdings.read(tmp_path / "run")
    assembly = prepare(experiment)
    assert found is not None
    assert [sum(row) for row in found.labelled] == [len(one.labelled) for one in assembly.scenario.clients]
    assert [sum(row) for row in found.unlabelled] == [len(one.unlabelled) for one in assembly.scenario.clients]
    assert found.classes == tuple(assembly.dataset.classes)
    (tmp_path / "run" / "holdings.json").write_text('{"classes": ["a"], "labelled": 1}')
    with pytest.raises(RunError, match=r"holdings\.json: is damaged"):
        holdings.read(tmp_path / "run")
    assert holdings.read(tmp_path) is None
