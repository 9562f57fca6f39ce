"""Loss terms over the rows of a step; every mean is over the rows a mask names, and 0 where it names none."""

import torch.nn.functional as F
from torch import Tensor


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean over the rows under the mask; exactly 0 where there are none."""
    return (values * mask).sum() / mask.sum().clamp(min=1)


def cross_entropy(logits: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    """Mean cross-entropy over the rows under the mask; the label of another row does not matter."""
    return masked_mean(F.cross_entropy(logits, y.clamp(min=0), reduction="none"), mask)
