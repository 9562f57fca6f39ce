"""Which images to label next: those the model is unsure of, and of those not the same thing twice.

    unsure   1 - (probability of the likeliest class - probability of the second)
    pool     the `POOL * n` images the model is most unsure of
    chosen   first the least sure; then, again and again, the image whose doubt times its distance to the nearest one
             chosen so far is largest, the distance being between the features before the net's last layer

Nothing is drawn, so the same model and images give the same list.
"""

from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from semifed.errors import SettingError
from semifed.trained.model import Model
from semifed.trained.pictures import read

POOL = 10
"""How many times as many unsure images are looked at as are wanted."""


class Choice(NamedTuple):
    """One image to label, what the model takes it for, and how unsure it is (1: two classes are equally likely)."""

    file: str
    guess: str
    unsure: float


def choose(
    model: Model, images: Path | str, count: int, *, resize: bool = False, skip_corrupt: bool = False
) -> list[Choice]:
    """The images of a folder or npz that are most worth a label, the most urgent first."""
    if count < 1:
        raise SettingError(f"-n: wanted at least 1 image, not {count}")
    names: list[str] = []
    opinions, features = [], []
    for some, pixels in read(Path(images), model.taken, resize, skip_corrupt):
        names += some
        opinions.append(model.probabilities(pixels))
        features.append(model.features(pixels))
    if not names:
        return []
    opinion = torch.cat(opinions)
    unsure = doubt(opinion)
    order = unsure.argsort(descending=True, stable=True)[: POOL * count]
    chosen = order[spread(unsure[order], torch.cat(features)[order], count)].tolist()
    guesses = opinion.argmax(1).tolist()
    return [Choice(names[place], model.taken.classes[guesses[place]], float(unsure[place])) for place in chosen]


def doubt(probabilities: Tensor) -> Tensor:
    """1 where the two likeliest classes are equally likely, 0 where one is certain."""
    first, second = probabilities.topk(2, dim=1).values.unbind(1)
    return 1 - (first - second)


def spread(unsure: Tensor, features: Tensor, count: int) -> Tensor:
    """Places of rows that are unsure and far from each other, the least sure first; rows come in that order."""
    points = features.double()
    near = torch.full((len(points),), torch.inf, dtype=torch.float64)
    left = torch.ones(len(points), dtype=torch.bool)
    chosen: list[int] = []
    for _ in range(min(count, len(points))):
        worth = (unsure.double() * near.clamp(max=1e300)).where(left, -1.0)
        chosen.append(int(worth.argmax()))
        left[chosen[-1]] = False
        near = near.minimum((points - points[chosen[-1]]).square().sum(1).sqrt())
    return torch.tensor(chosen, dtype=torch.int64)
