"""The gate: what cannot be used is set aside with its reason, and the round goes on with the others."""

import dataclasses
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import semifed
from semifed.batch import Batch
from semifed.engine.assemble import prepare
from semifed.engine.gate import Gate, Passed, capped, scaled, update_norm
from semifed.engine.local import Absent, Outcome, Reply, Task
from semifed.engine.rounds import begin
from semifed.errors import RunError
from semifed.methods import METHODS
from semifed.methods.base import Method, Terms, Visit
from semifed.methods.fedavg import FedAvg
from semifed.nets.net import Net, Pass
from semifed.params import Params, Parts, leaves
from semifed.payload import Partial
from semifed.trust import GateSettings

CLIENTS = 5


@dataclass(frozen=True)
class Exploding(FedAvg):
    """FedAvg whose loss is infinite for clients that hold a sample of class 0 in their first batch."""

    always: bool = False

    def supervised(self, net: Pass, parts: Parts, batch: Batch) -> Terms:
        terms = super().supervised(net, parts, batch)
        rows = batch.rows("labelled")
        bad = (rows.y == 0).any() | torch.tensor(self.always)
        return {"cross_entropy": terms["cross_entropy"] / torch.where(bad, 0.0, 1.0)}


def experiment(method: FedAvg) -> semifed.Experiment:
    words = ["data=synthetic", "net=mlp", "scenario.clients=8", "train.clients_per_round=8", "train.rounds=2"]
    words += ["scenario.partition=noniid-1", "scenario.per_class=20", "client.epochs=1"]
    return dataclasses.replace(semifed.Experiment.read(None, words), method=method)


def test_30_a_client_that_is_not_finite_is_refused_and_named() -> None:
    record = semifed.run(experiment(Exploding()))
    refused = record.rows[0]["refused"]
    assert 0 < len(refused) < 8
    assert set(refused.values()) == {"non_finite: in what is sent"}
    assert all(bool(tensor.isfinite().all()) for tensor in leaves(record.model))
    assert record.rows[-1]["terms"]["cross_entropy"] is not None
    counted = record.summary["refused"]
    assert all(
        counted[client] == {"non_finite": sum(client in row["refused"] for row in record.rows)} for client in refused
    )


def test_47_if_all_are_refused_the_model_stays_and_rows_are_strict_json() -> None:
    record = semifed.run(experiment(Exploding(always=True)))
    assert len(record.rows[0]["refused"]) == 8
    assert "0 of 8 updates are sound" in record.rows[0]["skipped"]
    assert record.summary["skipped"] == 2
    untouched = semifed.run(experiment(FedAvg()).replace("train.rounds=1"))
    assert record.rows[0]["bytes"]["up"] == 0 < untouched.rows[0]["bytes"]["up"]
    assert record.rows[0]["models"] == record.rows[1]["models"]
    json.dumps(record.rows, allow_nan=False)


def test_47_a_quorum_keeps_the_model_or_ends_the_run_which_can_go_on(tmp_path: Path) -> None:
    strict = experiment(Exploding()).replace("gate.quorum=1.0")
    assert len({json.dumps(row["models"]) for row in semifed.run(strict).rows}) == 1
    with pytest.raises(RunError, match=r"round 1: \d of 8 updates are sound, fewer than the 8 of gate.quorum") as told:
        semifed.run(strict.replace("gate.without_quorum=stop"), tmp_path / "run")
    assert "non_finite" in str(told.value)
    assert json.loads((tmp_path / "run" / "summary.json").read_bytes())["status"] == "failed"
    record = semifed.run(strict.replace("gate.quorum=0.1"), tmp_path / "run", resume=True, override=True)
    assert record.summary["status"] == "finished"
    assert record.summary["rounds"] == 2


# one round whose replies are spoilt by hand


class Round:
    """Honest tasks and replies of one round."""

    def __init__(self, method: str, *words: str) -> None:
        base = ["data=synthetic", "net=mlp", f"method={method}", f"scenario.clients={CLIENTS}", "client.epochs=1"]
        base += [f"train.clients_per_round={CLIENTS}", "scenario.gamma=0.5", "scenario.validation=20"]
        self.assembly = prepare(semifed.Experiment.read(None, [*base, *words]))
        experiment, net = self.assembly.experiment, self.assembly.net
        self.method, self.server = experiment.method, begin(self.assembly).server
        self.tasks = []
        for client in range(CLIENTS):
            down = self.method.download(self.server, Visit(client, client, 0))
            self.tasks.append(Task(client, down, self.method.enroll(net, down, client), 1))
        outcomes = self.assembly.workshop.train(0, self.tasks)
        self.replies = [Reply(task.client, 0, one) for task, one in zip(self.tasks, outcomes, strict=True)]

    def outcome(self, client: int) -> Outcome:
        outcome = self.replies[client].outcome
        assert isinstance(outcome, Outcome)
        return outcome

    def spoil(self, client: int, **changes: Any) -> None:
        self.replies[client] = Reply(client, 0, self.outcome(client)._replace(**changes))

    def passed(self, **rules: Any) -> Passed:
        return Gate(GateSettings(**rules), self.method, self.assembly.net)(0, self.tasks, self.replies)


def clients_of(passed: Passed) -> list[int]:
    return [turn.task.client for turn in passed.sound]


def with_net(round: Round, client: int, change: Callable[[Params], Parts]) -> None:
    round.spoil(client, up={"net": change(dict(round.outcome(client).up["net"]))})


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("labels", ["client", "server"])
def test_honest_clients_of_every_method_pass(method: str, labels: str) -> None:
    if labels not in METHODS[method].labels:
        pytest.skip("not a place of labels for this method")
    passed = Round(method, f"scenario.labels={labels}").passed()
    assert clients_of(passed) == list(range(CLIENTS))
    assert not passed.refused
    assert not passed.ignored
    assert not passed.clipped


@pytest.fixture
def honest() -> Round:
    return Round("fedavg")


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_40_what_is_not_finite(bad: float, honest: Round) -> None:
    def spoil(net: Params) -> Parts:
        value = net["head.bias"].clone()
        value[1] = bad
        return {**net, "head.bias": value}

    with_net(honest, 2, spoil)
    passed = honest.passed()
    assert clients_of(passed) == [0, 1, 3, 4]
    assert passed.refused == {"2": "non_finite: in what is sent"}


def test_40_a_sum_beyond_all_numbers_is_not_what_is_sent(honest: Round) -> None:
    with_net(honest, 2, lambda net: {**net, "head.bias": torch.full_like(net["head.bias"], 3e38)})
    assert honest.passed(norm=0).refused == {}


@pytest.mark.parametrize("withheld", [True, False])
def test_40_what_is_withheld_may_be_anything(withheld: bool) -> None:
    round = Round("fedmatch")
    sigma = round.outcome(3).up["sigma"]
    value, sent = sigma.values["head.bias"].clone(), torch.zeros_like(sigma.sent["head.bias"])
    value[1], sent[1] = math.nan, not withheld
    spoilt = Partial({**sigma.values, "head.bias": value}, {**sigma.sent, "head.bias": sent})
    round.spoil(3, up={**round.outcome(3).up, "sigma": spoilt})
    assert round.passed().refused == ({} if withheld else {"3": "non_finite: in what is sent"})


@pytest.mark.parametrize(("method", "uploads"), [("fedavg", 1), ("fedmatch", 1), ("ssfl", CLIENTS)])
def test_what_clients_would_send_that_did_nothing_is_found_once_for_all_who_received_the_same(
    monkeypatch: pytest.MonkeyPatch, method: str, uploads: int
) -> None:
    round, calls, upload = Round(method), list[Parts](), type(Round(method).method).upload

    def counted(method: Method, net: Net, parts: Parts, down: Parts) -> Parts:
        calls.append(down)
        return upload(method, net, parts, down)

    monkeypatch.setattr(type(round.method), "upload", counted)
    idle = [turn.idle for turn in round.passed().sound]
    assert len(calls) == uploads
    for own, task in zip(idle, round.tasks, strict=True):
        expected = upload(round.method, round.assembly.net, round.method.start(task.down, task.kept), task.down)
        assert all(torch.equal(one, two) for one, two in zip(leaves(own), leaves(expected), strict=True))


SPOILT: dict[str, Callable[[Params], Any]] = {
    "keys: up/net lacks 'head.bias'": lambda net: {name: net[name] for name in net if name != "head.bias"},
    "keys: up/net has a 'extra'": lambda net: {**net, "extra": torch.zeros(1)},
    "keys: up/net has a 'head.bios'": lambda net: {name.replace("head.bias", "head.bios"): net[name] for name in net},
    "keys: up/net has a ": lambda net: {**net, 7: torch.zeros(1)},
    "shape: up/net/head.bias is (1, 4), not (4,)": lambda net: {**net, "head.bias": net["head.bias"][None]},
    "shape: up/net/head.bias is (), not (4,)": lambda net: {**net, "head.bias": net["head.bias"][0]},
    "dtype: up/net/head.bias is torch.float64": lambda net: {**net, "head.bias": net["head.bias"].double()},
    "dtype: up/net/head.bias is torch.int64": lambda net: {**net, "head.bias": net["head.bias"].long()},
    "keys: up/net/head.bias is not a tensor": lambda net: {**net, "head.bias": [0.0] * 4},
    "keys: up/net is not of the kind": lambda net: Partial(net, {name: torch.tensor(True) for name in net}),
}


@pytest.mark.parametrize("reason", SPOILT)
def test_41_keys_shapes_and_dtypes(reason: str, honest: Round) -> None:
    with_net(honest, 1, SPOILT[reason])
    passed = honest.passed()
    assert clients_of(passed) == [0, 2, 3, 4]
    assert passed.refused["1"].startswith(reason)


def test_41_a_mask_of_another_shape() -> None:
    round = Round("fedsiam-d")
    up = round.outcome(0).up
    masks = {name: torch.ones(3, dtype=torch.bool) for name in up["online"].sent}
    round.spoil(0, up={**up, "online": Partial(up["online"].values, masks)})
    assert round.passed().refused["0"].startswith("shape: mask of up/online/")


def test_42_an_update_that_is_far_too_long_is_refused_or_clipped(honest: Round) -> None:
    idle = honest.tasks[0].down
    norms = sorted(update_norm(honest.outcome(client).up, idle) for client in range(CLIENTS))
    honest.spoil(3, up=scaled(honest.outcome(3).up, idle, 1e6))
    passed = honest.passed()
    assert clients_of(passed) == [0, 1, 2, 4]
    assert passed.refused["3"].startswith("norm: ")
    clipped = honest.passed(beyond_norm="clip", norm=2.0)
    assert clipped.clipped == [3]
    assert len(clipped.sound) == CLIENTS
    length = update_norm(clipped.sound[3].outcome.up, idle)
    assert length <= 2 * norms[3] * 1.001
    assert clients_of(honest.passed(norm=0.0)) == list(range(CLIENTS))


def test_42_two_updates_have_no_median_but_an_endless_one_is_seen(honest: Round) -> None:
    honest.tasks, honest.replies = honest.tasks[:2], honest.replies[:2]
    huge = torch.finfo(torch.float32).max
    with_net(honest, 0, lambda net: {name: torch.full_like(value, huge) for name, value in net.items()})
    assert clients_of(honest.passed()) == [0, 1]  # 1e38, but within what a float can hold
    honest.tasks[0] = honest.tasks[0]._replace(
        down={"net": {n: v - huge for n, v in honest.tasks[0].down["net"].items()}}
    )
    assert honest.passed().refused["0"].startswith("norm: inf")


@pytest.mark.parametrize("claimed", [-1, 10**12, math.nan, 3.0, "many", True, None])
def test_43_examples_that_cannot_be(claimed: Any, honest: Round) -> None:
    honest.spoil(4, examples=claimed)
    passed = honest.passed()
    assert clients_of(passed) == [0, 1, 2, 3]
    assert passed.refused["4"].startswith("examples: ")


@pytest.mark.parametrize(
    "changes",
    [
        {"terms": {}},
        {"terms": {"cross_entropy": "low"}},
        {"terms": {"cross_entropy": 1.0, "other": 1.0}},
        {"terms": [1.0]},
        {"notes": {"classes": [1.0, None]}},
    ],
)
def test_43_metrics_that_are_no_numbers_or_not_those_of_the_others(changes: dict[str, Any], honest: Round) -> None:
    honest.spoil(0, **changes)
    assert honest.passed().refused["0"].startswith("metrics: ")


def test_43_what_a_client_claims_beyond_its_share_is_cut() -> None:
    assert capped([10, 10, 10, 1000], 0.4) == [10, 10, 10, 20]
    assert capped([10, 10, 1000], 1.0) == [10, 10, 1000]
    assert capped([5, 7, 0], 0.1) == [5, 5, 0]
    assert capped([], 0.5) == []


@given(st.lists(st.integers(0, 10**9), max_size=12), st.floats(0.01, 1))
def test_43_no_share_is_larger_than_allowed(examples: list[int], share: float) -> None:
    cut = capped(examples, share)
    busy = [count for count in cut if count]
    assert all(0 <= after <= before for after, before in zip(cut, examples, strict=True))
    assert [count > 0 for count in cut] == [count > 0 for count in examples]
    if busy:
        assert max(busy) <= share * sum(busy) or len(set(busy)) == 1
    if len(busy) * share >= 1 and examples and max(examples) <= share * sum(examples):
        assert cut == examples


def test_44_second_replies_old_rounds_and_strangers_are_ignored(honest: Round) -> None:
    before = honest.passed()
    twice = honest.replies[1]._replace(outcome=honest.outcome(2))
    old, stranger = honest.replies[0]._replace(round=-1), honest.replies[0]._replace(client=77)
    honest.replies = [old, stranger, *honest.replies[::-1], twice]
    passed = honest.passed()
    assert clients_of(passed) == clients_of(before)
    assert all(a.outcome is b.outcome for a, b in zip(passed.sound, before.sound, strict=True))
    assert passed.ignored == ["client 0: of round -1", "client 77: was not asked", "client 1: a second time"]


def test_44_only_an_old_reply_is_no_reply(honest: Round) -> None:
    honest.replies[2] = honest.replies[2]._replace(round=5)
    honest.replies[3] = Reply(3, 0, Absent("no answer before the deadline"))
    honest.replies[4] = Reply(4, 0, Absent("keys: not what was expected", refused=True))
    passed = honest.passed()
    assert clients_of(passed) == [0, 1]
    assert passed.stragglers == {"2": "no reply", "3": "no answer before the deadline"}
    assert passed.refused == {"4": "keys: not what was expected"}


def test_49_a_free_rider_is_told_from_a_client_that_had_nothing_to_learn(honest: Round) -> None:
    honest.spoil(1, up=honest.tasks[1].down)
    honest.spoil(2, up=honest.tasks[2].down, terms={"cross_entropy": 0.0})
    passed = honest.passed()
    assert passed.refused == {"1": "unchanged: claims a loss, but sends what it received"}
    assert passed.idle == [2]
    assert honest.passed(unchanged="report").idle == [1, 2]


def test_49_a_free_rider_of_a_method_that_sends_parts() -> None:
    round = Round("fedsiam-d")
    idle = round.method.upload(round.assembly.net, round.method.start(round.tasks[0].down, {}), round.tasks[0].down)
    round.spoil(0, up=idle)
    assert list(round.passed().refused) == ["0"]
