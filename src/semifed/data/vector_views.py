"""Views of vectors: rows of numbers seen clean, under noise, or under more noise with columns blanked.

    clean    (x - mean) / std of each column
    weak     that, plus normal noise of deviation `views.noise`
    strong   that, plus three times the noise, and a share `views.mask` of the columns set to their mean

What happens to a row is decided by its own key, as with images. There is no mirror and no shift of a row of numbers,
so a method that asks for these is refused.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from semifed.data.views import View, ViewSettings
from semifed.keys import fold, uniform

STRONGER = 3.0
_FOR_WEAK, _FOR_STRONG, _FOR_MASK = 1, 2, 3


def vector_views(settings: ViewSettings, mean: Sequence[float], std: Sequence[float]) -> dict[str, View]:
    """The views that vectors have, by name."""
    offset, scale = torch.tensor(mean, dtype=torch.float32), torch.tensor(std, dtype=torch.float32)

    def clean(rows: Tensor, _keys: Tensor) -> Tensor:
        return (rows - offset.to(rows.device)) / scale.to(rows.device)

    def weak(rows: Tensor, keys: Tensor) -> Tensor:
        return clean(rows, keys) + settings.noise * normal(fold(keys, _FOR_WEAK), rows.shape[1])

    def strong(rows: Tensor, keys: Tensor) -> Tensor:
        noisy = clean(rows, keys) + STRONGER * settings.noise * normal(fold(keys, _FOR_STRONG), rows.shape[1])
        return noisy * (uniform(fold(keys, _FOR_MASK), rows.shape[1]) >= settings.mask)

    return {"clean": clean, "weak": weak, "strong": strong}


def normal(keys: Tensor, count: int) -> Tensor:
    """`count` numbers of the standard normal distribution for each key (Box and Muller)."""
    draws = uniform(keys, 2 * count)
    first, second = draws[..., :count], draws[..., count:]
    return (-2 * torch.log1p(-first)).sqrt() * torch.cos(2 * math.pi * second)
