"""How good a model is: accuracy and mean cross-entropy on a set of images, in evaluation mode."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from semifed.data.views import View
from semifed.nets.net import Net
from semifed.params import Params, lay_out

AT_ONCE = 500
"""Images that are tested together."""


class Score(NamedTuple):
    """Accuracy in percent, and the mean cross-entropy."""

    accuracy: float
    loss: float


class Examiner:
    """Tests models on one set of images, which is made ready once."""

    def __init__(self, net: Net, images: Tensor, labels: Tensor, clean: View, channels_last: bool = False) -> None:
        self._net = net
        self._labels = labels.to(images.device)
        self._layout = torch.channels_last if channels_last else torch.contiguous_format
        ready = clean(images, torch.zeros(len(images), dtype=torch.int64, device=images.device))
        self._images: Tensor = lay_out(ready, self._layout)

    @torch.no_grad()
    def __call__(self, params: Params) -> Score:
        """The score of one model."""
        right, loss = 0, 0.0
        params = lay_out(params, self._layout)
        pairs = zip(torch.split(self._images, AT_ONCE), torch.split(self._labels, AT_ONCE), strict=True)
        for images, labels in pairs:
            logits = self._net.evaluate(params, images)
            right += int((logits.argmax(1) == labels).sum())
            loss += float(F.cross_entropy(logits, labels, reduction="sum"))
        return Score(100 * right / len(self._labels), loss / len(self._labels))
