"""FedSem (Albaseer et al., "Exploiting Unlabeled Data in Smart Cities using Federated Learning", 2020).

    phase 1 : FedAvg on the labelled samples
    then    : the net at the end of phase 1 labels every unlabelled sample by its likeliest class, without a threshold
    phase 2 : FedAvg on all samples, from the net of phase 1

Differs from the authors' code: FedSiam's release runs 20 + 10 rounds, its paper says 30 + 20; here the share of
phase 1 is an option, 0.6 by default. A sample is labelled in evaluation mode, on the plain image, each time it is
read: the labelling net is fixed in phase 2, so that is the same as labelling once.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from semifed.batch import Batch, Pool
from semifed.methods.base import Cohort, Descend, Method, Move, Terms
from semifed.methods.losses import cross_entropy
from semifed.nets.net import Net, Pass
from semifed.params import Parts
from semifed.settings import option


@dataclass(frozen=True)
class FedSem(Method):
    """Supervised rounds first, then rounds on labels that the net of the first phase gives."""

    title: ClassVar[str] = "FedSem: label everything once with the net of a first phase (Albaseer et al. 2020)"
    labels: ClassVar[tuple[str, ...]] = ("client",)
    down: ClassVar[tuple[str, ...]] = ("net", "labeller")

    first: float = option(0.6, "share of the rounds that phase 1 takes", least=0, most=1)
    repeat: int = option(3, "how often each labelled sample stands in an epoch", least=1)

    def init(self, net: Net, key: int) -> Parts:
        return {"net": net.init(key), "labeller": net.init(key)}

    def reads(self) -> dict[str, Pool]:
        return {
            "labelled": Pool("labelled", ("weak",), self.repeat),
            "unlabelled": Pool("unlabelled", ("weak", "clean")),
        }

    def client(self) -> tuple[Move, ...]:
        return (Descend(("net",), self.loss),)

    def loss(self, net: Pass, parts: Parts, batch: Batch) -> Terms:
        labelled, unlabelled = batch.rows("labelled"), batch.rows("unlabelled")
        weak, clean = unlabelled.views
        second = batch.clock.round >= self.first * batch.clock.rounds
        known = net(parts["net"], labelled.views[0], labelled.real)
        guessed = net(parts["net"], weak, unlabelled.real & second)
        with torch.no_grad():
            guess = net.evaluate(parts["labeller"], clean).argmax(-1)
        net.note_labels(guess, unlabelled.real & second, unlabelled.real, known.shape[-1])
        return {
            "cross_entropy": cross_entropy(known, labelled.y, labelled.labelled),
            "pseudo_label": second * cross_entropy(guessed, guess, unlabelled.real),
        }

    def aggregate(self, net: Net, server: Parts, up: Parts, cohort: Cohort) -> Parts:
        merged = super().aggregate(net, server, up, cohort)
        still_first = cohort.round + 1 <= self.first * cohort.rounds
        return {**merged, "labeller": merged["net"] if still_first else server["labeller"]}
