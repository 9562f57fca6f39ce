"""SemiFL (Diao et al., "SemiFL: Semi-Supervised Federated Learning for Unlabeled Clients with Alternate Training",
NeurIPS 2022).

    client : the received net, fixed, labels a weak view of each image; rows sure enough are kept
             loss = cross-entropy(strong view, label)                                                          fix
                  + lambda CE(mixed, label) + (1 - lambda) CE(mixed, partner's label)                          mix
             mixed = lambda weak view + (1 - lambda) weak view of a partner, lambda ~ Beta(a, a), one a batch;
             a partner is any own image with its label, sure or not
    server : velocity <- momentum * velocity + (net - mean of the clients that trained); net <- net - velocity;
             then it trains on its labels, and measures the batch statistics anew (static batch normalisation)

Differs from the authors' code: labels are given when a row is read, on that step's weak view, and rows that are not
sure are masked, where theirs are given once a visit and left out of the epochs; statistics are measured on the
server's labelled images (their option; their default also uses the clients' images); momentum of the local
optimisers starts afresh at each visit.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from semifed.batch import Batch, Pool
from semifed.methods import averaging
from semifed.methods.base import Cohort, Descend, Method, Move, Terms
from semifed.methods.losses import cross_entropy
from semifed.nets.net import Net, Pass
from semifed.params import Parts
from semifed.settings import option


@dataclass(frozen=True)
class SemiFL(Method):
    """Labels by the received net, fix and mix loss, fine-tuning at the server after merging."""

    title: ClassVar[str] = "SemiFL: received net labels, fix + mix loss, server fine-tunes (Diao et al. 2022)"
    not_private: ClassVar[str] = "each client says whether it has trained at all, and the mean is over those that have."
    labels: ClassVar[tuple[str, ...]] = ("server",)
    up: ClassVar[tuple[str, ...]] = ("net", "trained")
    server_last: ClassVar[bool] = True

    weighting: averaging.Weighting = option("uniform", "how much a client weighs in the mean")
    threshold: float = option(0.95, "least probability of a pseudo-label", least=0, most=1)
    mixing: float = option(0.75, "a of the Beta distribution that lambda is drawn from", above=0)
    weight: float = option(1.0, "weight of the mix term", least=0)
    momentum: float = option(0.5, "momentum of the global step", least=0, below=1)

    def init(self, net: Net, key: int) -> Parts:
        first = net.init(key)
        return {"net": first, "velocity": {name: torch.zeros_like(value) for name, value in net.weights(first).items()}}

    def reads(self) -> dict[str, Pool]:
        return {
            "unlabelled": Pool("unlabelled", ("weak", "strong")),
            "partners": Pool("unlabelled", ("weak",)),
        }

    def server_reads(self) -> dict[str, Pool]:
        return {"labelled": Pool("labelled", ("weak",))}

    def start(self, down: Parts, kept: Parts) -> Parts:
        return {"net": down["net"], "received": down["net"]}

    def client(self) -> tuple[Move, ...]:
        return (Descend(("net",), self.loss),)

    def server(self) -> tuple[Move, ...]:
        return (Descend(("net",), self.supervised),)

    def supervised(self, net: Pass, parts: Parts, batch: Batch) -> Terms:
        rows = batch.rows("labelled")
        return {"cross_entropy": cross_entropy(net(parts["net"], rows.views[0], rows.real), rows.y, rows.labelled)}

    def loss(self, net: Pass, parts: Parts, batch: Batch) -> Terms:
        rows, partners = batch.rows("unlabelled"), batch.rows("partners")
        weak, strong = rows.views
        partner = partners.views[0][: len(weak)]
        with torch.no_grad():
            opinion = net.evaluate(parts["received"], weak)
            sure, label = opinion.softmax(-1).max(-1)
            other = net.evaluate(parts["received"], partner).argmax(-1)
            kept = rows.real & (sure >= self.threshold)
            share = beta_quantile(net.draw(1)[0], self.mixing)
        mixed = share * weak + (1 - share) * partner
        fixed = net(parts["net"], strong, kept)
        both = net(parts["net"], mixed, kept)
        net.note_labels(label, kept, rows.real, both.shape[-1])
        net.note_agreement(opinion, [fixed], rows.real)
        mix = share * cross_entropy(both, label, kept) + (1 - share) * cross_entropy(both, other, kept)
        return {"fix": cross_entropy(fixed, label, kept), "mix": self.weight * mix}

    def upload(self, net: Net, parts: Parts, down: Parts) -> Parts:
        weights = net.weights(parts["net"])
        trained = torch.stack([(value != down["net"][name]).any() for name, value in weights.items()]).any()
        return {"net": parts["net"], "trained": trained}

    def aggregate(self, net: Net, server: Parts, up: Parts, cohort: Cohort) -> Parts:
        if not bool(up["trained"].any()):
            return server
        present = cohort._replace(examples=cohort.examples * up["trained"])
        merged = averaging.mean(up["net"], averaging.weights(present, self.weighting))
        old, push = server["net"], server["velocity"]
        velocity = {name: self.momentum * push[name] + old[name] - merged[name] for name in push}
        return {"net": merged | {name: old[name] - velocity[name] for name in push}, "velocity": velocity}

    def settle(self, net: Net, server: Parts, images: Tensor) -> Parts:
        return {**server, "net": net.measure(server["net"], images)}


def beta_quantile(uniform: Tensor, a: float) -> Tensor:
    """The point below which a share `uniform` of a Beta(a, a) variable lies, on a fine grid."""
    middle = (torch.arange(4096, device=uniform.device) + 0.5) / 4096
    mass = (middle * (1 - middle)) ** (a - 1)
    below = mass.cumsum(0) / mass.sum()
    return middle[torch.searchsorted(below, uniform).clamp(max=4095)]
