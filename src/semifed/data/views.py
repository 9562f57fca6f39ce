"""Views: a batch of uint8 images, seen clean, weakly or strongly changed, as the float32 a net takes.

A view is called with (images [N, C, H, W] uint8, keys [N] int64) and returns (x / 255 - mean) / std. What happens to
an image is decided by its own key and the name of the view alone: not by its neighbours in the batch, and two views
of the same keys are drawn independently. The batch may be a whole cohort, flattened.

    clean    the image as it is
    weak     what `weak` names, in this order: crop, shift, flip, contrast, grey
    strong   crop, shift and flip where `weak` names them, then RandAugment, then cutout
    shift    only the shift
    flip     only the flip

Where it can, a kernel makes them (data/kernels). The code here is what it is held to, bit by bit, and does the rest.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from semifed.data.kernels import Folds, Kernel, Recipe
from semifed.data.randaugment import TOP_LEVEL, blend, cutout, luminance, mean_grey, randaugment, whole
from semifed.errors import SettingError
from semifed.keys import fold, uniform
from semifed.settings import Settings, option

View = Callable[[Tensor, Tensor], Tensor]

WeakStep = Literal["crop", "shift", "flip", "contrast", "grey"]
VIEW_NAMES = ("clean", "weak", "strong", "shift", "flip")

# Which of an image's draws decides what, and what its key is folded with for the rest. Changing one changes results.
_DRAWS = ("crop-y", "crop-x", "shift-y", "shift-x", "flip", "contrast", "grey")
_FOLDS = Folds(randaugment=len(_DRAWS), cutout=len(_DRAWS) + 1)


@dataclass(frozen=True)
class ViewSettings(Settings):
    """The table [views] of an experiment. Sizes are in pixels."""

    table: ClassVar[str] = "views"

    weak: tuple[WeakStep, ...] = option(
        ("shift", "flip"), "steps of a weak view: any of crop, shift, flip, contrast, grey; none: no augmentation"
    )
    crop: int = option(4, "mirror padding of which a piece of the old size is cut", least=0)
    shift: int = option(4, "largest shift along each axis, mirror padding", least=0)
    contrast: float = option(0.3, "the contrast is multiplied by 1 - this .. 1 + this", least=0, most=1)
    grey: float = option(0.1, "share of the images that lose their colour", least=0, most=1)
    operations: int = option(2, "RandAugment's n: operations for each image, drawn with replacement", least=0)
    magnitude: int = option(
        10, "RandAugment's m: levels are drawn from 1 .. m - 1 on a scale to 10", least=2, most=TOP_LEVEL + 1
    )
    probability: float = option(0.5, "with which each drawn operation is carried out", least=0, most=1)
    cutout: int = option(16, "side of the grey square that ends a strong view; 0: none", least=0)
    noise: float = option(
        0.1, "vectors: deviation of a weak view's noise, in deviations of a column; strong: three times", least=0
    )
    mask: float = option(0.25, "vectors: share of the columns that a strong view blanks", least=0, most=1)

    def __post_init__(self) -> None:
        """Refuse what cannot be drawn from."""
        super().__post_init__()
        twice = [step for number, step in enumerate(self.weak) if step in self.weak[:number]]
        if twice:
            raise SettingError(f"views.weak: {twice[0]!r} is named twice")


def views(settings: ViewSettings, mean: Sequence[float], std: Sequence[float], flips: bool) -> dict[str, View]:
    """All views by name, for data with this mean and std of each channel (on the scale 0..1).

    `flips` says whether a mirrored image still shows the same class: without it (digits) no view flips, and `flip`
    is the clean image.
    """
    allowed = [step for step in settings.weak if flips or step != "flip"]

    def weak(images: Tensor, keys: Tensor) -> Tensor:
        draws = _draws(keys)
        return _recolour(_move(images, draws, allowed, settings), draws, allowed, settings)

    def strong(images: Tensor, keys: Tensor) -> Tensor:
        images = _move(images, _draws(keys), allowed, settings)
        own = fold(keys, _FOLDS.randaugment)
        images = randaugment(images, own, settings.operations, settings.magnitude, settings.probability)
        return cutout(images, fold(keys, _FOLDS.cutout), settings.cutout) if settings.cutout else images

    def shift(images: Tensor, keys: Tensor) -> Tensor:
        return _move(images, _draws(keys), ["shift"], settings)

    def flip(images: Tensor, keys: Tensor) -> Tensor:
        return _move(images, _draws(keys), ["flip"] if flips else [], settings)

    def clean(images: Tensor, _keys: Tensor) -> Tensor:
        return images

    changes = (clean, weak, strong, shift, flip)
    recipes = _recipes(allowed, settings, flips)
    return {
        name: _as_view(change, recipe, mean, std)
        for name, change, recipe in zip(VIEW_NAMES, changes, recipes, strict=True)
    }


def normalise(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """(x / 255 - mean) / std of each channel, in float32."""
    scales, offsets = _scales_and_offsets(mean, std)
    scale = torch.tensor(scales, dtype=torch.float32, device=images.device)
    offset = torch.tensor(offsets, dtype=torch.float32, device=images.device)
    return images.float().mul_(scale[:, None, None]).add_(offset[:, None, None])


def _scales_and_offsets(mean: Sequence[float], std: Sequence[float]) -> tuple[list[float], list[float]]:
    return [1 / (255 * s) for s in std], [-m / s for m, s in zip(mean, std, strict=True)]


def _recipes(allowed: Sequence[str], settings: ViewSettings, flips: bool) -> list[Recipe]:
    """The views in the order of their names, as the kernel takes them."""
    move = Recipe(
        crop=settings.crop if "crop" in allowed else None,
        shift=settings.shift if "shift" in allowed else None,
        flip="flip" in allowed,
    )
    weak = move._replace(
        contrast=settings.contrast if "contrast" in allowed else None,
        grey=settings.grey if "grey" in allowed else None,
    )
    strong = move._replace(
        operations=settings.operations,
        magnitude=settings.magnitude,
        probability=settings.probability,
        cutout=settings.cutout,
    )
    recipes = (Recipe(), weak, strong, Recipe(shift=settings.shift), Recipe(flip=flips))
    return [recipe._replace(number=number) for number, recipe in enumerate(recipes)]


def _as_view(change: View, recipe: Recipe, mean: Sequence[float], std: Sequence[float]) -> View:
    """The change with draws of its own, followed by normalisation."""
    kernel = Kernel(recipe, _FOLDS, *_scales_and_offsets(mean, std))

    def view(images: Tensor, keys: Tensor) -> Tensor:
        if images.dtype != torch.uint8:
            raise TypeError(f"a view takes uint8 images, not {images.dtype}")
        made = kernel(images, keys)
        return normalise(change(images, fold(keys, recipe.number)), mean, std) if made is None else made

    return view


def _draws(keys: Tensor) -> dict[str, Tensor]:
    """Each image's numbers in [0, 1) for the simple steps, by name, as [N, 1]."""
    return dict(zip(_DRAWS, uniform(keys, len(_DRAWS))[:, :, None].unbind(1), strict=True))


def _move(images: Tensor, draws: dict[str, Tensor], steps: Sequence[str], settings: ViewSettings) -> Tensor:
    """Crop, shift and flip as one look-up: they only say from which row and column each pixel comes.

    A pixel is followed back from the result to the image, so the last step is undone first.
    """
    if not {"crop", "shift", "flip"} & set(steps):
        return images
    height, width = images.shape[-2:]
    rows = torch.arange(height, device=images.device).expand(len(images), -1)
    columns = torch.arange(width, device=images.device).expand(len(images), -1)
    if "flip" in steps:
        columns = columns.where(draws["flip"] < 0.5, width - 1 - columns)
    for step, most in (("shift", settings.shift), ("crop", settings.crop)):
        if step in steps:
            rows = _mirrored(rows + whole(draws[f"{step}-y"], -most, most), height)
            columns = _mirrored(columns + whole(draws[f"{step}-x"], -most, most), width)
    source = (rows[:, :, None] * width + columns[:, None, :]).flatten(1)[:, None]
    return images.flatten(2).gather(2, source.expand(-1, images.shape[1], -1)).view_as(images)


def _mirrored(places: Tensor, size: int) -> Tensor:
    """Places along an axis, reflected into 0 .. size - 1 without repeating the edges."""
    last = size - 1
    return last - (places.remainder(max(2 * last, 1)) - last).abs()


def _recolour(images: Tensor, draws: dict[str, Tensor], steps: Sequence[str], settings: ViewSettings) -> Tensor:
    """The steps of a weak view that change values and not places."""
    if "contrast" in steps:
        factor = 1 + settings.contrast * (2 * draws["contrast"][:, 0] - 1)
        images = blend(mean_grey(images), images, factor)
    if "grey" in steps:
        coloured = draws["grey"][:, 0] >= settings.grey
        images = blend(luminance(images), images, coloured.float())
    return images
