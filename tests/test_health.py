"""Pseudo-labels that say nothing, clients who give others than the rest (cases 28, 29, 32, 48), and silent ones."""

import dataclasses
import io
import json
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import Tensor

import semifed
from semifed.batch import Batch
from semifed.engine import rounds
from semifed.engine.health import Rates, alarms, collapsed, odd_clients
from semifed.engine.layers import share_sent
from semifed.errors import SettingError
from semifed.methods import METHODS
from semifed.methods.base import Method
from semifed.methods.fixmatch import FixMatch
from semifed.methods.mean_teacher import MeanTeacher
from semifed.methods.uda import UDA
from semifed.nets.net import Pass
from semifed.params import Parts, leaves
from semifed.payload import Partial
from semifed.results.record import Row
from semifed.terminal import Watcher
from toys import TINY

ALARM = "collapse: 100% of the unlabelled rows are taken for class 1"
ALL_OF_CLASS_1 = {"coverage": 1.0, "classes": [0.0, 1.0, 0.0]}


@dataclass(frozen=True)
class OneClass(FixMatch):
    """FixMatch whose labeller is sure of class 1, whatever it sees; or sure of nothing."""

    sure: bool = True

    def opinion(self, net: Pass, parts: Parts, batch: Batch) -> Tensor:
        opinion = super().opinion(net, parts, batch)
        wanted = torch.arange(opinion.shape[-1]) == 1
        return 0 * opinion + 100.0 * wanted * self.sure


def experiment(method: Method, *words: str) -> semifed.Experiment:
    return dataclasses.replace(semifed.Experiment.read(None, [*TINY, *words]), method=method)


def test_where_no_row_passes_the_threshold_the_term_is_exactly_0() -> None:
    record = semifed.run(experiment(OneClass(sure=False)))
    for row in record.rows:
        assert row["terms"]["pseudo_label"] == 0
        assert row["notes"]["coverage"] == 0
        assert not any(row["notes"]["classes"])
        assert row["alarms"] == []
    assert record.summary["alarms"] == 0


def test_14_where_clients_hold_no_unlabelled_data_the_term_is_exactly_0() -> None:
    record = semifed.run(experiment(FixMatch(), "scenario.gamma=1.0"))
    for row in record.rows:
        assert row["terms"]["pseudo_label"] == 0 < row["terms"]["cross_entropy"]
        assert not row["refused"]


def test_labels_of_one_class_give_an_alarm_and_the_run_goes_on() -> None:
    record = semifed.run(experiment(OneClass()))
    assert [row["alarms"] for row in record.rows] == [
        ["collapse: 100% of the unlabelled rows are taken for class 1"]
    ] * 4
    assert record.summary["status"] == "finished"
    assert record.summary["alarms"] == 4


@pytest.mark.parametrize(("delta", "heard"), [(0.0, False), (10.0, True)])
def test_clients_whose_moves_are_all_too_small_to_be_sent_give_an_alarm(delta: float, heard: bool) -> None:
    method = METHODS["fedmatch"](choice="embedding", reliability=False, delta=delta)  # type: ignore[call-arg]
    record = semifed.run(experiment(method))
    text = "silence: clients send 0.00% of what they could, so next to nothing of what they learn arrives"
    assert [row["alarms"] for row in record.rows] == [[text] if heard else []] * 4


def test_a_method_that_sends_another_net_whole_is_not_silent() -> None:
    record = semifed.run(experiment(METHODS["fedsiam-d"]()))
    assert not any(record.rows[0]["layers"]["online sent"].values())
    assert [row["alarms"] for row in record.rows] == [[]] * 4


def test_how_much_is_sent_is_counted_over_numbers_not_layers() -> None:
    yes, some = torch.tensor(True), torch.tensor([True, False, False, False])
    large, small = torch.zeros(4, 100), torch.zeros(4)
    part = Partial({"a.weight": large, "b.bias": small}, {"a.weight": ~yes, "b.bias": some})
    siam = METHODS["fedsiam-d"]()  # whose divergences are no numbers of a net
    assert share_sent(siam, [{"psi": part, "divergence": {"a": large}}]) == pytest.approx(1 / 404)
    assert share_sent(siam, [{"psi": part, "sigma": {"a.weight": large}}]) == pytest.approx(401 / 804)
    assert share_sent(siam, [{"psi": Partial({"a.weight": large}, {"a.weight": some})}]) == pytest.approx(0.25)
    assert share_sent(siam, [{"sigma": {"a.weight": large}}]) == share_sent(siam, []) == 1


def test_a_run_that_collapsed_ends_early_if_asked_and_stays_ended(tmp_path: Path) -> None:
    patient = experiment(OneClass(), "train.stop_on_collapse=2")
    record = semifed.run(patient, tmp_path / "run")
    assert (record.summary["status"], len(record.rows)) == ("collapsed", 2)
    again = semifed.run(patient, tmp_path / "run", resume=True)
    assert again.rows == record.rows
    assert json.loads((tmp_path / "run" / "summary.json").read_text()) == record.summary
    on = semifed.run(patient.replace("train.stop_on_collapse=0"), tmp_path / "run", resume=True, override=True)
    assert (on.summary["status"], len(on.rows)) == ("finished", 4)


def test_a_person_is_warned_once() -> None:
    said = io.StringIO()
    semifed.run(experiment(OneClass()), watch=Watcher(Console(file=said)))
    warnings = [line for line in said.getvalue().splitlines() if line.startswith("warning")]
    assert warnings == [f"warning: round 1: {ALARM}"]


@pytest.mark.parametrize(
    ("notes", "alarm"),
    [
        (ALL_OF_CLASS_1, True),
        ({"coverage": 0.96, "classes": [0.01, 0.94, 0.01]}, True),
        ({"coverage": 0.5, "classes": [0.0, 0.5, 0.0]}, False),
        ({"coverage": 1.0, "classes": [0.5, 0.5, 0.0]}, False),
        ({"coverage": 1.0, "classes": [1.0]}, False),
        ({}, False),
    ],
)
def test_the_alarm_is_for_almost_all_rows_in_one_class(notes: dict[str, float], alarm: bool) -> None:
    assert bool(alarms(notes)) == alarm


POISONED = [*TINY, "method=fedavg-fixmatch", "method.threshold=0.0", "scenario.clients=5", "train.clients_per_round=5"]
POISONED += ["scenario.gamma=0.2", "train.rounds=6", "client.epochs=3", "client.batch=10", "client.lr=0.05"]


def test_48_a_client_whose_unlabelled_data_are_poisoned_is_named() -> None:
    clean = semifed.run(semifed.Experiment.read(None, POISONED))
    assert not any(row["alarms"] for row in clean.rows)
    attack = ["attack.kind=poison", "attack.clients=[2]", "attack.target=1"]
    spoilt = semifed.run(semifed.Experiment.read(None, [*POISONED, *attack]))
    alarms = [alarm for row in spoilt.rows[3:] for alarm in row["alarms"]]
    assert len(alarms) == 3
    assert all(
        alarm.startswith("client 2: ") and "are of class 1, where the middle client" in alarm for alarm in alarms
    )
    silent = semifed.run(semifed.Experiment.read(None, [*POISONED, *attack, "gate.odd_classes=0"]))
    assert not any(row["alarms"] for row in silent.rows)


@pytest.mark.parametrize(
    ("last", "others", "odd"),
    [
        ([0.15, 0.85], [[0.5, 0.5], [0.52, 0.48], [0.49, 0.51], [0.5, 0.5]], True),
        ([0.45, 0.55], [[0.5, 0.5], [0.52, 0.48], [0.49, 0.51], [0.5, 0.5]], False),  # chance alone does that
        ([0.1, 0.9], [[0.9, 0.1], [0.2, 0.8], [0.5, 0.5], [0.7, 0.3]], False),  # all of them differ
        ([0.05, 0.15], [[0.1, 0.1], [0.12, 0.08], [0.1, 0.1], [0.1, 0.1]], False),  # few rows have a label
        ([0.25, 0.75], [[0.5, 0.5]], False),  # nobody to compare with
        ([], [[], [], [], []], False),
    ],
)
def test_48_far_more_of_a_class_than_the_others(last: list[float], others: list[list[float]], odd: bool) -> None:
    seen = [Rates(client, rates, 200) for client, rates in enumerate([*others, last])]
    found = odd_clients(seen, 5.0)
    assert [one.partition(":")[0] for one in found] == ([f"client {len(others)}"] if odd else [])
    assert odd_clients(seen, 0) == []


@pytest.mark.parametrize(("most", "rest"), [(0.5, 0.0), (0.3, 0.05)])
def test_48_where_each_holds_other_classes_the_odd_one_is_farther_out(most: float, rest: float) -> None:
    own = [[most if name in (client, (client + 1) % 10) else rest for name in range(10)] for client in range(10)]
    seen = [Rates(client, rates, 200) for client, rates in enumerate(own)]
    assert odd_clients(seen, 5.0) == []
    found = odd_clients([*seen, Rates(10, [0.0, 0.0, 1.0, *[0.0] * 7], 200)], 5.0)
    assert [one.partition(":")[0] for one in found] == (["client 10"] if rest else [])  # of 2 classes or of 1: both odd


def test_48_a_class_that_nobody_else_has_does_not_hide_what_is_odd() -> None:
    others = [[0.25 + shift, 0.35 - shift, 0.4, 0.0] for shift in (0.0, 0.05, 0.1, 0.15, 0.2)]
    seen = [Rates(client, rates, 200) for client, rates in enumerate([*others, [0.04, 0.04, 0.8, 0.12]])]
    assert [one.partition(" its")[0] for one in odd_clients(seen, 5.0)] == ["client 5: 80% of"]


@pytest.mark.parametrize(("more", "rows"), [([], 67), (["client.steps=2"], 20), (["client.steps=200"], 67)])
def test_48_chance_is_that_of_the_rows_looked_at(monkeypatch: pytest.MonkeyPatch, more: list[str], rows: int) -> None:
    """Few steps do not come round to all of a client's rows, and shares of few rows differ more."""
    monkeypatch.setattr(rounds, "odd_clients", lambda seen, _: [str(one.rows) for one in seen])
    words = [*TINY, "method=fedavg-fixmatch", "client.unlabelled_batch=10", "train.rounds=1", *more]
    record = semifed.run(semifed.Experiment.read(None, words))
    assert record.rows[0]["alarms"] == [str(rows)] * 3


def test_patience_counts_rounds_in_a_row() -> None:
    bad = "collapse: 99% of the unlabelled rows are taken for class 0"
    rows: list[Row] = [{"alarms": [bad]}, {"alarms": ["client 3: 90% ..."]}, {"alarms": [bad]}, {"alarms": [bad]}]
    assert collapsed(rows, 2)
    assert not collapsed(rows, 3)
    assert not collapsed(rows[:2], 1)
    assert not collapsed(rows, 0)
    assert not collapsed([], 1)


@pytest.mark.parametrize(
    "method", [UDA(temperature=1e-30, threshold=0), MeanTeacher(alpha=0.0), MeanTeacher(alpha=1 - 1e-12)]
)
def test_the_ends_of_decay_and_temperature_stay_finite(method: Method) -> None:
    record = semifed.run(experiment(method))
    assert not any(row["refused"] for row in record.rows)
    assert all(bool(tensor.isfinite().all()) for tensor in leaves(record.model))


@pytest.mark.parametrize(("name", "key", "value"), [("mean-teacher", "alpha", 1), ("fedavg-uda", "temperature", 0)])
def test_what_would_stand_still_or_divide_by_0_is_refused(name: str, key: str, value: float) -> None:
    assert name in METHODS
    with pytest.raises(SettingError, match=f"method.{key}"):
        semifed.Experiment.read(None, [f"method={name}", f"method.{key}={value}"])
