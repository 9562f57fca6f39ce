"""FedMix with FedFreq (Zhang et al., "Semi-Supervised Federated Learning with non-IID Data: Algorithm and System
Design", 2021).

    omega is the model; sigma its copy that the server trains, psi_k its copy that client k trains
    server : sigma <- omega, then an epoch of lambda_s * cross-entropy on its labels; sends omega and sigma
    client : psi <- omega; label = class with the largest sum of softmax over A augmented copies of u, kept if the
             largest probability on u is at least tau
             loss = cross-entropy(psi(u), label) on kept rows
                  + lambda_c |softmax psi(shifted u) - softmax psi(flipped u)|^2 + lambda_r |sigma - psi|^2
    server : psi <- sum of w_k psi_k, w_k = (1 - q_k / sum q) / (clients - 1), q_k counting k's visits      FedFreq
             omega <- alpha psi + beta sigma + gamma omega

Differs from the authors' code: the release calls a loss-based rule instead of FedFreq, mixes 0.7 sigma + 0.3 psi
in every pass, swaps beta and gamma, switches the penalty off, and its flips permute images in the batch. Left open by
the paper and set here: lambda_c 0.1 and lambda_r 0 as in the release; losses are means over rows (the release sums at
the server, which acts as a learning rate 64 times higher: set server.lr for that).
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from semifed.batch import Batch, Pool
from semifed.methods import averaging
from semifed.methods.base import Cohort, Descend, Method, Move, Terms
from semifed.methods.losses import cross_entropy, masked_mean, sq_dist
from semifed.nets.net import Net, Pass
from semifed.params import Params, Parts, mix
from semifed.settings import option


@dataclass(frozen=True)
class FedMix(Method):
    """A mix of three models, with clients weighted by how seldom they take part."""

    title: ClassVar[str] = "FedMix with FedFreq: mix of clients', server's and previous model (Zhang et al. 2021)"
    labels: ClassVar[tuple[str, ...]] = ("server",)
    down: ClassVar[tuple[str, ...]] = ("omega", "sigma")
    up: ClassVar[tuple[str, ...]] = ("psi",)

    weighting: averaging.Weighting = option("frequency", "how much a client weighs in the mean")
    alpha: float = option(0.5, "share of the clients' mean in the mix", least=0, most=1)
    beta: float = option(0.3, "share of the server's model", least=0, most=1)
    gamma: float = option(0.2, "share of the previous model", least=0, most=1)
    copies: int = option(5, "augmented copies that vote on a label (A)", least=1)
    threshold: float = option(0.8, "least probability of a pseudo-label (tau)", least=0, most=1)
    lambda_s: float = option(1.0, "weight of the supervised term", least=0)
    lambda_c: float = option(0.1, "weight of consistency between the shifted and the flipped image", least=0)
    lambda_r: float = option(0.0, "weight of |sigma - psi|^2", least=0)

    def init(self, net: Net, key: int) -> Parts:
        return {"omega": net.init(key), "sigma": net.init(key)}

    def reads(self) -> dict[str, Pool]:
        return {"unlabelled": Pool("unlabelled", ("clean", "shift", "flip", *("weak",) * self.copies))}

    def server_reads(self) -> dict[str, Pool]:
        return {"labelled": Pool("labelled", ("clean",))}

    def server(self) -> tuple[Move, ...]:
        return (Descend(("sigma",), self.supervised),)

    def client(self) -> tuple[Move, ...]:
        return (Descend(("psi",), self.unsupervised),)

    def start(self, down: Parts, kept: Parts) -> Parts:
        return {"psi": down["omega"], "sigma": down["sigma"]}

    def supervised(self, net: Pass, parts: Parts, batch: Batch) -> Terms:
        rows = batch.rows("labelled")
        logits = net(parts["sigma"], rows.views[0], rows.real)
        return {"cross_entropy": self.lambda_s * cross_entropy(logits, rows.y, rows.labelled)}

    def unsupervised(self, net: Pass, parts: Parts, batch: Batch) -> Terms:
        rows, psi = batch.rows("unlabelled"), parts["psi"]
        clean, shifted, flipped, *copies = rows.views
        logits, one, two = (net(psi, view, rows.real) for view in (clean, shifted, flipped))
        with torch.no_grad():
            opinions: list[Tensor] = [net.evaluate(psi, copy).softmax(-1) for copy in copies]
            label = torch.stack(opinions).sum(0).argmax(-1)
            kept = rows.real & (logits.softmax(-1).amax(-1) >= self.threshold)
        net.note_labels(label, kept, rows.real, logits.shape[-1])
        net.note_agreement(one, [two], rows.real)
        gap = (one.softmax(-1) - two.softmax(-1)).square().sum(-1)
        terms = {
            "pseudo_label": cross_entropy(logits, label, kept),
            "consistency": self.lambda_c * masked_mean(gap, rows.real),
        }
        if self.lambda_r:
            terms["near_sigma"] = self.lambda_r * sq_dist(net.weights(psi), parts["sigma"])
        return terms

    def aggregate(self, net: Net, server: Parts, up: Parts, cohort: Cohort) -> Parts:
        psi = averaging.mean(up["psi"], averaging.weights(cohort, self.weighting))
        shares = ((self.alpha, psi), (self.beta, server["sigma"]), (self.gamma, server["omega"]))
        omega = {**psi, **mix(*((share, net.weights(model)) for share, model in shares))}
        return {"omega": omega, "sigma": {name: value.clone() for name, value in omega.items()}}

    def models(self, server: Parts) -> dict[str, Params]:
        return {"global": server["omega"]}

    def own_model(self, server: Parts, up: Parts) -> Params:
        psi: Params = up["psi"]
        return psi
