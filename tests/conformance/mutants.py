"""Copies of a healthy method that are each broken in one way: the bugs that the battery is there for.

Most of them were seen in released code: a teacher compared with itself, the received net sent back, training on a
batch left over from elsewhere, state that all clients share.

No mutant peeks at hidden labels, because none can be written: of an unlabelled sample a method sees y = -1, and the
full list of labels never leaves the engine.
"""

from typing import ClassVar

import torch
from torch import Tensor

from semifed.batch import Batch, Samples
from semifed.methods.base import Cohort, Descend, Follow, Move, Terms, Visit
from semifed.methods.losses import masked_mean, sq_dist
from semifed.nets.net import Net, Pass
from semifed.params import Params, Parts, stack, unstack
from semifed.payload import Partial

from .healthy import Healthy


class Ailing(Healthy):
    """What the mutants have in common: one place for the labels is enough to show a fault, and faster."""

    labels: ClassVar[tuple[str, ...]] = ("client",)


class BranchesOnValues(Ailing):
    """Asks a tensor in an `if`: the clients of a mapped cohort cannot go different ways."""

    def average(self, values: Tensor, mask: Tensor) -> Tensor:
        return masked_mean(values, mask) if mask.any() else values.sum()


class UsesWithheld(Ailing):
    """Holds a client near a net that was not sent to it."""

    down: ClassVar[tuple[str, ...]] = ("net", "rounds", "hint")

    def init(self, net: Net, key: int) -> Parts:
        return super().init(net, key) | {"hint": net.init(key + 1)}

    def download(self, server: Parts, visit: Visit) -> Parts:
        withheld = {name: torch.tensor(False) for name in server["hint"]}
        return super().download(server, visit) | {"hint": Partial(server["hint"], withheld)}

    def loss(self, net: Pass, parts: Parts, batch: Batch) -> Terms:
        near = sq_dist(net.weights(parts["net"]), parts["hint"].values)
        return super().loss(net, parts, batch) | {"near": 0.01 * near}


class UploadsReceived(Ailing):
    """Sends back the net that it received: the local training is thrown away."""

    def upload(self, net: Net, parts: Parts, down: Parts) -> Parts:
        return super().upload(net, {**parts, "net": {name: value + 0 for name, value in down["net"].items()}}, down)


class TrainsOnLeftovers(Ailing):
    """Trains on the first batch that anybody ever had."""

    seen: ClassVar[list[Batch]] = []

    def loss(self, net: Pass, parts: Parts, batch: Batch) -> Terms:
        self.seen.append(batch)
        return super().loss(net, parts, self.seen[0])


class IgnoresUnlabelled(Ailing):
    """Reads unlabelled images, and is consistent on the labelled ones only."""

    compared: ClassVar[str] = "labelled"


class TeacherAgainstTeacher(Ailing):
    """Compares the teacher with itself: the consistency has a value, but no gradient."""

    def student(self, net: Pass, parts: Parts, rows: Samples) -> Tensor:
        return net(parts["teacher"], rows.views[0], rows.real).softmax(-1).detach()


class ForgetsDetach(Ailing):
    """Sends a gradient into the teacher."""

    def teacher(self, net: Pass, parts: Parts, rows: Samples) -> Tensor:
        return net(parts["teacher"], rows.views[-1], rows.real).softmax(-1)


class TrainsTeacher(ForgetsDetach):
    """Descends on the part that should only follow."""

    def client(self) -> tuple[Move, ...]:
        return Descend(("net", "shift", "teacher"), self.loss), Follow("teacher", of=("net",), decay=0.9)


class TrainsUnused(Ailing):
    """Descends on a part that no term reads."""

    def student(self, net: Pass, parts: Parts, rows: Samples) -> Tensor:
        return net(parts["net"], rows.views[0], rows.real).softmax(-1)


class CountsPadding(Ailing):
    """Takes a plain mean over all rows."""

    def average(self, values: Tensor, mask: Tensor) -> Tensor:
        return values.sum() / max(len(values), 1)


class NormalisesPadding(Ailing):
    """Passes on that every row is real, so that padding moves the batch statistics."""

    def student(self, net: Pass, parts: Parts, rows: Samples) -> Tensor:
        return super().student(net, parts, rows._replace(real=torch.ones_like(rows.real)))


class DividesByNothing(Ailing):
    """Divides by the size of a mask that may be empty."""

    def average(self, values: Tensor, mask: Tensor) -> Tensor:
        return (values * mask).sum() / mask.sum()


class DividesBySure(Ailing):
    """Divides by the number of confident rows, of which there may be none."""

    def loss(self, net: Pass, parts: Parts, batch: Batch) -> Terms:
        rows = batch.rows("unlabelled")
        student, teacher = self.student(net, parts, rows), self.teacher(net, parts, rows)
        sure = rows.real & (teacher.amax(-1) > 0.8)
        term = (((student - teacher) ** 2).sum(-1) * sure).sum() / sure.sum()
        return self.supervised(net, parts, batch) | {"consistency": term}


class SharesShift(Ailing):
    """Gives all clients the same shift, which nobody trains."""

    def client(self) -> tuple[Move, ...]:
        return Descend(("net",), self.loss), Follow("teacher", of=("net",), decay=0.9)

    def enroll(self, net: Net, down: Parts, key: int) -> Parts:
        return super().enroll(net, down, 0)


class SendsShift(Ailing):
    """Sends what should stay at the client, under another name."""

    up: ClassVar[tuple[str, ...]] = ("net", "report")

    def upload(self, net: Net, parts: Parts, down: Parts) -> Parts:
        return super().upload(net, parts, down) | {"report": {"moved": parts["shift"]["by"]}}


class ForgetsKept(Ailing):
    """Starts every visit as if it were the first."""

    def start(self, down: Parts, kept: Parts) -> Parts:
        return {**down, "teacher": down["net"], "shift": {"by": torch.zeros_like(kept["shift"]["by"])}}


class MergesUnsent(Ailing):
    """Counts what has changed as sent, and merges everything else too."""

    def upload(self, net: Net, parts: Parts, down: Parts) -> Parts:
        weights = {name: torch.tensor(name.endswith("weight")) for name in parts["net"]}
        return {"net": Partial(parts["net"], weights)}

    def aggregate(self, net: Net, server: Parts, up: Parts, cohort: Cohort) -> Parts:
        everything = {name: torch.tensor(True) for name in server["net"]}
        return super().aggregate(net, server, {"net": Partial(up["net"].values, everything)}, cohort)


class SendsUndeclared(SendsShift):
    """Sends a part that it does not name."""

    up: ClassVar[tuple[str, ...]] = ("net",)


class SendsNothing(Ailing):
    """Withholds all that it has."""

    def upload(self, net: Net, parts: Parts, down: Parts) -> Parts:
        return {"net": Partial(parts["net"], {name: torch.tensor(False) for name in parts["net"]})}


class ThrowsDice(Ailing):
    """Draws from torch's own generator."""

    def average(self, values: Tensor, mask: Tensor) -> Tensor:
        return masked_mean(values, mask) * torch.rand(())


class CountsOnTheSide(Ailing):
    """Remembers how often it was used, where no checkpoint looks."""

    used: ClassVar[list[None]] = []

    def average(self, values: Tensor, mask: Tensor) -> Tensor:
        self.used.append(None)
        return masked_mean(values, mask) / len(self.used)


class KeepsTuple(Ailing):
    """Has a part that cannot be written to a file."""

    def init(self, net: Net, key: int) -> Parts:
        return super().init(net, key) | {"seen": ()}


class ShrinksInPlace(Ailing):
    """Writes into what the client has kept."""

    def start(self, down: Parts, kept: Parts) -> Parts:
        kept["shift"]["by"].mul_(0.9)
        return super().start(down, kept)


class MergesInPlace(Ailing):
    """Writes the new net into the tensors of the old one."""

    def aggregate(self, net: Net, server: Parts, up: Parts, cohort: Cohort) -> Parts:
        merged = super().aggregate(net, server, up, cohort)
        for name, value in server["net"].items():
            value.copy_(merged["net"][name])
        return merged


class MergesInTurn(Ailing):
    """Averages each client with the mean so far: the last one weighs half."""

    def aggregate(self, net: Net, server: Parts, up: Parts, cohort: Cohort) -> Parts:
        first, *others = unstack(up["net"].fill(stack([server["net"]] * len(cohort.clients))), len(cohort.clients))
        for other in others:
            first = {
                name: value.lerp(other[name], 0.5) if value.is_floating_point() else value
                for name, value in first.items()
            }
        return server | {"net": first}


class CountsInFloats(Ailing):
    """Turns a whole number into a fraction."""

    def aggregate(self, net: Net, server: Parts, up: Parts, cohort: Cohort) -> Parts:
        return super().aggregate(net, server, up, cohort) | {"rounds": server["rounds"] + 1.0}


class ForgetsHead(Ailing):
    """Names a model that is half a net."""

    def models(self, server: Parts) -> dict[str, Params]:
        return {"global": {name: value for name, value in server["net"].items() if not name.startswith("head")}}
