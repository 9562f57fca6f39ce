"""A small healthy method that has everything: two pools, a teacher, kept parts, a partial upload, a counter."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from semifed import keys
from semifed.batch import Batch, Pool, Samples
from semifed.methods import averaging
from semifed.methods.base import Cohort, Descend, Follow, Method, Move, Terms
from semifed.methods.losses import cross_entropy, masked_mean
from semifed.nets.net import Net, Pass
from semifed.params import Parts, stack
from semifed.payload import Partial


@dataclass(frozen=True)
class Healthy(Method):
    """A mean teacher; the teacher and a shift of the logits stay at the client, and only what has changed goes up."""

    down: ClassVar[tuple[str, ...]] = ("net", "rounds")
    keeps: ClassVar[tuple[str, ...]] = ("teacher", "shift")
    compared: ClassVar[str] = "unlabelled"

    def reads(self) -> dict[str, Pool]:
        return {"labelled": Pool("labelled", ("clean",)), "unlabelled": Pool("unlabelled", ("weak", "weak"))}

    def client(self) -> tuple[Move, ...]:
        return Descend(("net", "shift"), self.loss), Follow("teacher", of=("net",), decay=0.9)

    def server(self) -> tuple[Move, ...]:
        return (Descend(("net",), self.supervised),)

    def init(self, net: Net, key: int) -> Parts:
        return {"net": net.init(key), "rounds": torch.tensor(0)}

    def enroll(self, net: Net, down: Parts, key: int) -> Parts:
        classes = len(down["net"]["head.bias"])
        return {"teacher": down["net"], "shift": {"by": keys.uniform(torch.tensor(key), classes)}}

    def supervised(self, net: Pass, parts: Parts, batch: Batch) -> Terms:
        rows = batch.rows("labelled")
        logits = net(parts["net"], rows.views[0], rows.real)
        return {"cross_entropy": cross_entropy(logits, rows.y, rows.labelled)}

    def loss(self, net: Pass, parts: Parts, batch: Batch) -> Terms:
        rows = batch.rows(self.compared)
        gap = self.student(net, parts, rows) - self.teacher(net, parts, rows)
        return self.supervised(net, parts, batch) | {"consistency": self.average((gap**2).sum(-1), rows.real)}

    def student(self, net: Pass, parts: Parts, rows: Samples) -> Tensor:
        shift: Tensor = parts["shift"]["by"]
        return (net(parts["net"], rows.views[0], rows.real) + shift).softmax(-1)

    def teacher(self, net: Pass, parts: Parts, rows: Samples) -> Tensor:
        return net(parts["teacher"], rows.views[-1], rows.real).softmax(-1).detach()

    def average(self, values: Tensor, mask: Tensor) -> Tensor:
        return masked_mean(values, mask)

    def upload(self, net: Net, parts: Parts, down: Parts) -> Parts:
        changed = {
            name: (value - down["net"][name]).abs().amax() > 1e-4 if value.is_floating_point() else torch.tensor(True)
            for name, value in parts["net"].items()
        }
        return {"net": Partial(parts["net"], changed)}

    def aggregate(self, net: Net, server: Parts, up: Parts, cohort: Cohort) -> Parts:
        nets = up["net"].fill(stack([server["net"]] * len(cohort.clients)))
        weight = averaging.weights(cohort, self.weighting)
        return {**server, "net": averaging.mean(nets, weight), "rounds": server["rounds"] + 1}
