"""Loss terms over the rows of a step; every mean is over the rows a mask names, and 0 where it names none.

And one over a net's parameters: their squared distance to others.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from semifed.nets.kernels import distances
from semifed.params import Params


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean over the rows under the mask; exactly 0 where there are none."""
    return (values * mask).sum() / mask.sum().clamp(min=1)


def cross_entropies(logits: Tensor, y: Tensor) -> Tensor:
    """The cross-entropy of each row; a row without a label gets some number, to be masked.

    Mapped over clients, torch takes its own form apart in Python, and imports its symbolic algebra for it.
    """
    return -logits.log_softmax(-1).gather(-1, y.clamp(min=0)[..., None]).squeeze(-1)


def cross_entropy(logits: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    """Mean cross-entropy over the rows under the mask; the label of another row does not matter."""
    return masked_mean(cross_entropies(logits, y), mask)


def kl(aim: Tensor, logits: Tensor) -> Tensor:
    """KL(aim || prediction) of each row."""
    return (aim * (aim.clamp(min=1e-12).log() - logits.log_softmax(-1))).sum(-1)


def distance(kind: Literal["mse", "kl"], aim: Tensor, logits: Tensor) -> Tensor:
    """How far each row's prediction is from its aim: the squared distance over the number of classes, or KL."""
    return (logits.softmax(-1) - aim).square().mean(-1) if kind == "mse" else kl(aim, logits)


def vote(own: Tensor, others: Sequence[Tensor], counted: Tensor) -> Tensor:
    """The class that most predictions name; others only where they are counted, a tie goes to the lower class."""
    classes = torch.arange(own.shape[-1], device=own.device)
    votes = (own.argmax(-1)[:, None] == classes).float()
    for other in others:
        votes = votes + counted * (other.argmax(-1)[:, None] == classes)
    return votes.argmax(-1)


def normalise_rows(values: Tensor, real: Tensor) -> Tensor:
    """Each column with mean 0 and variance 1 over the real rows."""
    count = real.sum().clamp(min=1)
    mask = real[:, None]
    mean = (values * mask).sum(0) / count
    variance = ((values - mean).square() * mask).sum(0) / count
    return (values - mean) * (variance + 1e-5).rsqrt()


def sq_dist(left: Params, right: Params) -> Tensor:
    """Squared distance over the names that both dicts have, integer entries left out."""
    pairs = ((left[name], right[name]) for name in left if name in right and left[name].is_floating_point())
    if torch._C._are_functorch_transforms_active():
        return sum((((one - two) ** 2).sum() for one, two in pairs), torch.zeros(()))
    # The same with fewer passes over the memory, which for large nets is what takes the time.
    return sum((distances.squared(one, two) for one, two in pairs), torch.zeros(()))
