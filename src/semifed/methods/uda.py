"""UDA (Xie et al., "Unsupervised Data Augmentation for Consistency Training", 2020) in a federation.

    client: as FixMatch (fixmatch.py), but the aim on the strong view is the sharpened prediction on the weak view,
            softmax(logits / temperature), where its largest probability exceeds `threshold`; and of the labelled
            samples only those count that are not known well yet (training signal annealing): true-class
            probability at most a (1 - 1/K) + 1/K with a = exp(5 (round / rounds - 1))

Differs from the authors' code: FedSiam's and FedCon's releases train clients on the server's last batch and have no
sharpening, mask or annealing; FedMatch released no baselines. The annealing counts rounds, as none of the papers says
what it should count.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from semifed.batch import Batch, Samples
from semifed.methods import averaging
from semifed.methods.fixmatch import FixMatch
from semifed.methods.losses import masked_mean
from semifed.nets.net import Pass
from semifed.settings import option


@dataclass(frozen=True)
class UDA(FixMatch):
    """Sharpened predictions instead of hard labels, and training signal annealing."""

    title: ClassVar[str] = "UDA at the clients: sharpened aims, training signal annealing (Xie et al. 2020)"

    threshold: float = option(0.8, "least probability of the likeliest class", least=0, most=1)
    temperature: float = option(0.4, "of the aims; below 1 sharpens", above=0)
    annealing: bool = option(True, "leave out labelled samples that are known well already")

    def counted(self, logits: Tensor, rows: Samples, batch: Batch) -> Tensor:
        if not self.annealing:
            return rows.labelled
        true = logits.detach().softmax(-1).gather(-1, rows.y.clamp(min=0)[:, None])[:, 0]
        return rows.labelled & (true <= annealed(batch.clock.round, batch.clock.rounds, logits.shape[-1]))

    def kept(self, opinion: Tensor, real: Tensor) -> Tensor:
        return real & (opinion.softmax(-1).amax(-1) > self.threshold)

    def agree(self, net: Pass, logits: Tensor, opinion: Tensor, kept: Tensor, real: Tensor) -> Tensor:
        label = opinion.softmax(-1).max(-1).indices
        net.note_labels(label, kept, real, opinion.shape[-1])
        net.note_agreement(opinion, [logits], real)
        # From the largest down, so that a temperature near 0 gives a hard label and nothing infinite.
        aim = ((opinion - opinion.amax(-1, keepdim=True)) / self.temperature).softmax(-1)
        return masked_mean(F.cross_entropy(logits, aim, reduction="none") * kept, real)


@dataclass(frozen=True)
class FedProxUDA(UDA):
    """UDA on FedProx."""

    title: ClassVar[str] = "UDA at the clients, on FedProx"

    weighting: averaging.Weighting = option("uniform", "how much a client weighs in the mean")
    mu: float = option(0.01, "weight of the pull towards the received net (FedProx)", least=0)


def annealed(round: Tensor, rounds: Tensor, classes: int) -> Tensor:
    """The probability above which a labelled sample is known well enough, growing exponentially from 1/K to 1."""
    return torch.exp(5 * (round / rounds - 1)) * (1 - 1 / classes) + 1 / classes
