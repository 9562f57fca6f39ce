"""FixMatch whose pseudo-labels are aligned over the federation, after ReMixMatch (Berthelot et al., 2020).

With two or three labels a class the net learns some classes late, FixMatch then labels next to nothing as these, and
they are lost for good. So the labeller's probabilities are divided by how often it finds each class, and normalised:

    client: rates <- running mean of the labeller's probabilities over the unlabelled rows
            label u by softmax(logits - log rates), if at least `threshold`; the loss is FixMatch's
    server: mean of the clients' nets, and of their rates

Differs from the authors' code: theirs is for one place and averages the last 128 batches; here the running mean is
kept by the optimiser, whose step descends half the squared distance between the rates and the mean probabilities of a
batch, and the server's mean makes them the cohort's, so that one client's few rows do not decide. Classes are taken
to be equally frequent (theirs: as among the labels), so it is not for data where they are not. Not of the four papers.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from semifed.batch import Batch
from semifed.methods.base import Descend, Move, Terms
from semifed.methods.fixmatch import FixMatchGlobal
from semifed.nets.net import Net, Pass
from semifed.params import Parts
from semifed.settings import option


@dataclass(frozen=True)
class FixMatchAligned(FixMatchGlobal):
    """FixMatch with the received net as labeller, which is kept from forgetting classes."""

    title: ClassVar[str] = "FixMatch at the clients, received net as labeller, class rates aligned"
    leaves: ClassVar[str] = (
        "The trained parameters: classes, and after few steps images, can be guessed from them; and how often the "
        "received net finds each class among the client's images."
    )
    down: ClassVar[tuple[str, ...]] = ("net", "rates")
    up: ClassVar[tuple[str, ...]] = ("net", "rates")

    least: float = option(0.01, "rates below it count as much, so that no class is lifted without bound", above=0)

    def init(self, net: Net, key: int) -> Parts:
        first = net.init(key)
        classes = net.evaluate(first, torch.zeros(1, *net.shape)).shape[-1]
        return {"net": first, "rates": {"classes": torch.full((classes,), 1 / classes)}}

    def start(self, down: Parts, kept: Parts) -> Parts:
        return {**super().start(down, kept), "rates": down["rates"]}

    def client(self) -> tuple[Move, ...]:
        return (Descend(("net", "rates"), self.loss),)

    def loss(self, net: Pass, parts: Parts, batch: Batch) -> Terms:
        rates, rows = parts["rates"]["classes"], batch.rows("unlabelled")
        opinion = self.opinion(net, parts, batch)
        aligned = opinion - rates.detach().clamp(min=self.least).log()
        far = ((opinion.softmax(-1) - rates) * rows.real[:, None]).sum(0) / rows.real.sum().clamp(min=1)
        return {**self.terms(net, parts, batch, aligned), "rates": far.square().sum() / 2}
