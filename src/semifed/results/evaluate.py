"""How good a model is: accuracy and mean cross-entropy on a set of images, in evaluation mode."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from semifed.data.views import View
from semifed.nets.net import Net
from semifed.params import Params


class Score(NamedTuple):
    """Accuracy in percent, and the mean cross-entropy."""

    accuracy: float
    loss: float


class Examiner:
    """Tests models on one set of images, which is made ready once."""

    def __init__(self, net: Net, images: Tensor, labels: Tensor, clean: View, batch: int = 500) -> None:
        self._net, self._batch = net, batch
        self._labels = labels.to(images.device)
        self._images = clean(images, torch.zeros(len(images), dtype=torch.int64, device=images.device))

    @torch.no_grad()
    def __call__(self, params: Params) -> Score:
        """The score of one model."""
        right, loss = 0, 0.0
        pairs = zip(torch.split(self._images, self._batch), torch.split(self._labels, self._batch), strict=True)
        for images, labels in pairs:
            logits = self._net.evaluate(params, images)
            right += int((logits.argmax(1) == labels).sum())
            loss += float(F.cross_entropy(logits, labels, reduction="sum"))
        return Score(100 * right / len(self._labels), loss / len(self._labels))
