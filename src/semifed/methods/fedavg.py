"""FedAvg (McMahan et al., 2017), FedAvg+ (the baseline of FedSiam), FedProx (Li et al., 2020).

    server: send the net to the cohort
    client: for some epochs over its labelled samples,
                net <- net - lr * gradient of [cross-entropy + mu/2 * |net - received net|^2]     (mu = 0: FedAvg)
    server: net <- mean of the clients' nets, by examples or uniform

FedAvg+ reads weakly augmented images and every labelled sample `repeat` times an epoch.
Where the server holds labels it trains the net on them first, and clients without labels change nothing.

Differs from the authors' code: FedAvg+ in FedSiam's release repeats the labelled samples (3 times at a
labelled share of 0.1) but augments only CIFAR-10 and SVHN; here `views.weak` says what is augmented, and the
order of samples is drawn anew each epoch. FedProx there adds the distance un-squared and without a gradient; here it
is the paper's mu/2 * |.|^2.
"""

from dataclasses import dataclass
from typing import ClassVar

from semifed.batch import Batch, Pool
from semifed.methods.base import Descend, Method, Move, Terms
from semifed.methods.losses import cross_entropy, sq_dist
from semifed.nets.net import Pass
from semifed.params import Parts
from semifed.settings import option


@dataclass(frozen=True)
class FedAvg(Method):
    """Supervised training at the clients, and the mean of their nets."""

    title: ClassVar[str] = "labels only, mean of the clients' nets (McMahan et al. 2017)"

    repeat: int = option(1, "how often each labelled sample stands in an epoch", least=1)
    augment: bool = option(False, "read weakly augmented images instead of plain ones")

    def reads(self) -> dict[str, Pool]:
        return {"labelled": Pool("labelled", ("weak" if self.augment else "clean",), self.repeat)}

    def client(self) -> tuple[Move, ...]:
        return (Descend(("net",), self.supervised),)

    def server(self) -> tuple[Move, ...]:
        return (Descend(("net",), self.supervised),)

    def supervised(self, net: Pass, parts: Parts, batch: Batch) -> Terms:
        rows = batch.rows("labelled")
        logits = net(parts["net"], rows.views[0], rows.real)
        return {"cross_entropy": cross_entropy(logits, rows.y, rows.labelled)}


@dataclass(frozen=True)
class FedAvgPlus(FedAvg):
    """FedAvg with augmentation and the labelled samples repeated."""

    title: ClassVar[str] = "FedAvg on augmented images, labelled samples repeated (baseline of FedSiam)"

    repeat: int = option(3, "how often each labelled sample stands in an epoch", least=1)
    augment: bool = option(True, "read weakly augmented images instead of plain ones")


@dataclass(frozen=True)
class FedProx(FedAvg):
    """FedAvg whose clients are held near the net they received."""

    title: ClassVar[str] = "FedAvg with a pull towards the received net (Li et al. 2020)"

    mu: float = option(0.01, "weight of the pull", least=0)

    def start(self, down: Parts, kept: Parts) -> Parts:
        return {"net": down["net"], "anchor": down["net"]}

    def client(self) -> tuple[Move, ...]:
        return (Descend(("net",), self.held),)

    def held(self, net: Pass, parts: Parts, batch: Batch) -> Terms:
        near = sq_dist(net.weights(parts["net"]), parts["anchor"])
        return self.supervised(net, parts, batch) | {"proximity": self.mu / 2 * near}
