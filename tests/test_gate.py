"""A client that becomes NaN is set aside; the round goes on with the others."""

import dataclasses
import json
from dataclasses import dataclass

import torch

import semifed
from semifed.batch import Batch
from semifed.methods.base import Terms
from semifed.methods.fedavg import FedAvg
from semifed.nets.net import Pass
from semifed.params import Parts, leaves


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


def test_a_client_that_is_not_finite_is_refused_and_named() -> None:
    record = semifed.run(experiment(Exploding()))
    refused = record.rows[0]["refused"]
    assert 0 < len(refused) < 8
    assert set(refused.values()) == {"not finite"}
    assert all(bool(tensor.isfinite().all()) for tensor in leaves(record.model))
    assert record.rows[-1]["terms"]["cross_entropy"] is not None


def test_if_all_are_refused_the_model_stays_and_rows_are_strict_json() -> None:
    record = semifed.run(experiment(Exploding(always=True)))
    assert len(record.rows[0]["refused"]) == 8
    untouched = semifed.run(experiment(FedAvg()).replace("train.rounds=1"))
    assert record.rows[0]["bytes"]["up"] == 0 < untouched.rows[0]["bytes"]["up"]
    assert record.rows[0]["models"] == record.rows[1]["models"]
    json.dumps(record.rows, allow_nan=False)
