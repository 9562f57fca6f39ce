"""FixMatch (Sohn et al., 2020) in a federation, on FedAvg or FedProx.

    client: labelled batch x (weak view), unlabelled batch u (weak view and strong view)
            label u by the class that the labeller finds most likely on the weak view, if at least `threshold`
            loss = cross-entropy(x) + weight * mean over u of [kept] cross-entropy(strong view, label)
                 + mu/2 |net - received net|^2                                                         FedProx
    labeller: the client's own net as it is now, or the net it received from the server
    server: mean of the clients' nets; where labels are at the server, it trains on them first

Differs from the authors' code: FedSiam's and FedCon's releases give the pseudo-label term no gradient, swap the
views, and pull with a distance that has no gradient either; FedMatch released no baselines. Labels are found
in evaluation mode (no dropout), and the sum over kept rows is divided by all rows of u.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from semifed.batch import Batch, Pool, Samples
from semifed.methods import averaging
from semifed.methods.base import Descend, Method, Move, Terms
from semifed.methods.losses import cross_entropies, cross_entropy, masked_mean, sq_dist
from semifed.nets.net import Pass
from semifed.params import Params, Parts
from semifed.settings import option


@dataclass(frozen=True)
class FixMatch(Method):
    """Hard labels from the weak view for the strong view."""

    title: ClassVar[str] = "FixMatch at the clients, own net as labeller (Sohn et al. 2020)"

    threshold: float = option(0.95, "least probability of a pseudo-label", least=0, most=1)
    weight: float = option(1.0, "weight of the unlabelled term", least=0)
    labeller: Literal["local", "global"] = option("local", "the net that labels: the client's own or the received one")
    mu: float = option(0.0, "weight of the pull towards the received net (FedProx)", least=0)
    repeat: int = option(1, "how often each labelled sample stands in an epoch", least=1)

    def reads(self) -> dict[str, Pool]:
        return {
            "unlabelled": Pool("unlabelled", ("weak", "strong")),
            "labelled": Pool("labelled", ("weak",), self.repeat),
        }

    def server_reads(self) -> dict[str, Pool]:
        return {"labelled": Pool("labelled", ("weak",), self.repeat)}

    def start(self, down: Parts, kept: Parts) -> Parts:
        return {"net": down["net"], "received": down["net"]}

    def client(self) -> tuple[Move, ...]:
        return (Descend(("net",), self.loss),)

    def server(self) -> tuple[Move, ...]:
        return (Descend(("net",), self.supervised),)

    def supervised(self, net: Pass, parts: Parts, batch: Batch) -> Terms:
        rows = batch.rows("labelled")
        logits = net(parts["net"], rows.views[0], rows.real)
        return {"cross_entropy": cross_entropy(logits, rows.y, self.counted(logits, rows, batch))}

    def loss(self, net: Pass, parts: Parts, batch: Batch) -> Terms:
        return self.terms(net, parts, batch, self.opinion(net, parts, batch))

    def opinion(self, net: Pass, parts: Parts, batch: Batch) -> Tensor:
        """What the labeller makes of the weak view, as logits."""
        with torch.no_grad():
            return net.evaluate(self.labels_with(parts), batch.rows("unlabelled").views[0])

    def terms(self, net: Pass, parts: Parts, batch: Batch, opinion: Tensor) -> Terms:
        labelled, unlabelled = batch.rows("labelled"), batch.rows("unlabelled")
        kept = self.kept(opinion, unlabelled.real)
        strong = unlabelled.views[1], unlabelled.real, kept
        known, guessed = net.each(parts["net"], (labelled.views[0], labelled.real), strong)
        terms = {
            "cross_entropy": cross_entropy(known, labelled.y, self.counted(known, labelled, batch)),
            "pseudo_label": self.weight * self.agree(net, guessed, opinion, kept, unlabelled.real),
        }
        if self.mu:
            terms["proximity"] = self.mu / 2 * sq_dist(net.weights(parts["net"]), parts["received"])
        return terms

    def labels_with(self, parts: Parts) -> Params:
        labeller: Params = parts["net" if self.labeller == "local" else "received"]
        return {name: value.detach() for name, value in labeller.items()}

    def counted(self, logits: Tensor, rows: Samples, batch: Batch) -> Tensor:
        """The labelled rows that count."""
        return rows.labelled

    def kept(self, opinion: Tensor, real: Tensor) -> Tensor:
        """The unlabelled rows that count: others may have no gradient."""
        return real & (opinion.softmax(-1).amax(-1) >= self.threshold)

    def agree(self, net: Pass, logits: Tensor, opinion: Tensor, kept: Tensor, real: Tensor) -> Tensor:
        """The unlabelled term, before its weight."""
        label = opinion.softmax(-1).max(-1).indices
        net.note_labels(label, kept, real, opinion.shape[-1])
        net.note_agreement(opinion, [logits], real)
        return masked_mean(cross_entropies(logits, label) * kept, real)


@dataclass(frozen=True)
class FixMatchGlobal(FixMatch):
    """FixMatch that labels with the net the client received."""

    title: ClassVar[str] = "FixMatch at the clients, received net as labeller"

    labeller: Literal["local", "global"] = option("global", "the net that labels: the client's own or the received one")


@dataclass(frozen=True)
class FedProxFixMatch(FixMatch):
    """FixMatch on FedProx."""

    title: ClassVar[str] = "FixMatch at the clients, on FedProx"

    weighting: averaging.Weighting = option("uniform", "how much a client weighs in the mean")
    mu: float = option(0.01, "weight of the pull towards the received net (FedProx)", least=0)
