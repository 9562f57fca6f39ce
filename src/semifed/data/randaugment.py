"""RandAugment with FixMatch's pool of 14 operations, and cutout, on whole batches of uint8 images.

Every image draws its own operations, levels and directions from its own key. An operation is a function of
(images [N, C, H, W] uint8 of one or three channels, levels [N] from -10 to 10) and returns uint8 images. The sign of a
level is the direction of the geometric operations and nothing to the others; its size means what it means in FixMatch:

    autocontrast, equalize, identity         no level
    brightness, color, contrast, sharpness   factor 0.05 + 0.09 level (1 would leave the image as it is)
    posterize                                4 + (4 level) // 10 bits are kept
    solarize                                 values from 256 - (256 level) // 10 on are inverted
    rotate                                   3 level degrees, either way
    shear-x, shear-y                         0.03 level, either way
    translate-x, translate-y                 (0.03 level) of the side in whole pixels, either way

Pixels from outside the image are black. All arithmetic is exact integers, or float32 written so that it rounds as
Pillow does: an image never depends on its neighbours in the batch, and Pillow is the reference in the tests.
"""

import math
from collections.abc import Callable
from functools import lru_cache, partial

import torch
from torch import Tensor

from semifed.keys import uniform

Operation = Callable[[Tensor, Tensor], Tensor]

TOP_LEVEL = 10
CUTOUT_GREY = 127
FACTORS = tuple(level * 0.9 / TOP_LEVEL + 0.05 for level in range(TOP_LEVEL + 1))
"""Of brightness, color, contrast and sharpness at every level, to be rounded to float32."""

_POSITION = 16  # bits after the point in the source positions of the geometric operations


def randaugment(images: Tensor, keys: Tensor, count: int, magnitude: int, probability: float) -> Tensor:
    """`count` operations for each image, drawn with replacement, one after the other.

    Each is carried out with `probability`, at a level drawn uniformly from 1 .. magnitude - 1.
    """
    for turn in uniform(keys, 4 * count).view(len(keys), count, 4).unbind(1):
        kind, chance, level, way = turn.unbind(1)
        kinds = whole(kind, 0, len(OPERATIONS) - 1).where(chance < probability, _IDENTITY)
        levels = whole(level, 1, magnitude - 1) * (2 * whole(way, 0, 1) - 1)
        images = _one_turn(images, kinds, levels)
    return images


def cutout(images: Tensor, keys: Tensor, side: int) -> Tensor:
    """A grey square on each image, its centre anywhere; moved in at the top and left, cut off at the bottom and right.

    So FixMatch places it. (Its square is one pixel larger than its name says; this one has the side given.)
    """
    height, width = images.shape[-2:]
    draws = uniform(keys, 2)
    rows = _within(whole(draws[:, :1], 0, height - 1), side, height)
    columns = _within(whole(draws[:, 1:], 0, width - 1), side, width)
    covered = (rows[:, :, None] & columns[:, None, :])[:, None].byte()
    # Arithmetic, here and below: `where` and `masked_fill` on bytes are twenty times slower.
    return (images * (1 - covered)).add_(covered * CUTOUT_GREY)


def whole(draws: Tensor, low: int, high: int) -> Tensor:
    """Whole numbers in [low, high] from floats in [0, 1)."""
    return low + (draws * (high - low + 1)).long()


def blend(start: Tensor, images: Tensor, factor: Tensor) -> Tensor:
    """From `start` (factor 0) to `images` (factor 1) and beyond, cut to 0..255; fractions are dropped, as by Pillow."""
    # Not torch.lerp, which is free to round as it likes: here each step rounds once, as in Pillow.
    base = start.float()
    mixed = (images.float() - base).mul_(factor[:, None, None, None]).add_(base)
    return _floor(mixed.clamp_(0, 255))


def luminance(images: Tensor) -> Tensor:
    """The grey value of each pixel as one channel of uint8 (ITU-R 601, in Pillow's fixed point)."""
    if images.shape[1] == 1:
        return images
    if images.shape[1] != 3:  # no colours that an eye would weigh
        return images.float().mean(1, keepdim=True).round().byte()
    red, green, blue = images.int().unbind(1)
    return ((red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16).byte()[:, None]


def mean_grey(images: Tensor) -> Tensor:
    """The mean luminance of each image, rounded to a whole number, as [N, 1, 1, 1]."""
    pixels = images.shape[-2] * images.shape[-1]
    total = luminance(images).sum((1, 2, 3), dtype=torch.int64)
    return ((2 * total + pixels) // (2 * pixels))[:, None, None, None]


def _one_turn(images: Tensor, kinds: Tensor, levels: Tensor) -> Tensor:
    """Each operation once, on the images that drew it: sorted by operation, changed group by group, sorted back."""
    order = torch.argsort(kinds, stable=True)
    counts = torch.bincount(kinds, minlength=len(OPERATIONS)).tolist()
    groups = zip(
        OPERATIONS.values(),
        torch.split(images.index_select(0, order), counts),
        torch.split(levels[order], counts),
        strict=True,
    )
    changed = [operation(group, level) if len(group) else group for operation, group, level in groups]
    return torch.cat(changed).index_select(0, torch.argsort(order))


def _within(centre: Tensor, side: int, size: int) -> Tensor:
    """Which of the `size` places along one axis are covered, as [N, size]."""
    first = (centre - side // 2).clamp(min=0)
    place = torch.arange(size, device=centre.device)
    return (place >= first) & (place < first + side)


def _identity(images: Tensor, _levels: Tensor) -> Tensor:
    return images


def _autocontrast(images: Tensor, _levels: Tensor) -> Tensor:
    """Each channel stretched so that it reaches from 0 to 255; a channel of one value stays as it is."""
    low = images.amin((2, 3), keepdim=True).float()
    spread = images.amax((2, 3), keepdim=True).float() - low
    flat = spread == 0
    low, spread = low.masked_fill(flat, 0), spread.masked_fill(flat, 255)
    # A whole number over at most 255: no quotient is near enough to the next whole number to be rounded up to it.
    return _floor((images.float() - low).mul_(255).div_(spread))


def _equalize(images: Tensor, _levels: Tensor) -> Tensor:
    """Each channel remapped so that its values are spread evenly, by Pillow's integer rule."""
    channels = images.flatten(0, 1).flatten(1).long()
    offsets = torch.arange(len(channels), device=images.device)[:, None] * 256
    counts = torch.bincount((channels + offsets).flatten(), minlength=len(channels) * 256).view(-1, 256)
    total = channels.shape[1]
    brightest = counts.gather(1, channels.amax(1, keepdim=True))
    step = (total - brightest) // 255
    below = counts.cumsum(1) - counts
    unchanged = torch.arange(256, device=images.device)
    table = ((step // 2 + below) // step.clamp(min=1)).clamp_(max=255).where(step > 0, unchanged)
    return table.byte().gather(1, channels).view_as(images)


def _posterize(images: Tensor, levels: Tensor) -> Tensor:
    dropped = 8 - (4 + levels.abs() * 4 // TOP_LEVEL)
    return images & (256 - (1 << dropped)).byte()[:, None, None, None]


def _solarize(images: Tensor, levels: Tensor) -> Tensor:
    threshold = (256 - levels.abs() * 256 // TOP_LEVEL).short()
    inverted = images >= threshold[:, None, None, None]
    return images ^ (inverted.byte() * 255)


def _brightness(images: Tensor, levels: Tensor) -> Tensor:
    return blend(images.new_zeros(1), images, _factor(levels))


def _contrast(images: Tensor, levels: Tensor) -> Tensor:
    return blend(mean_grey(images), images, _factor(levels))


def _color(images: Tensor, levels: Tensor) -> Tensor:
    """Towards grey; a grey image stays as it is."""
    return images if images.shape[1] == 1 else blend(luminance(images), images, _factor(levels))


def _sharpness(images: Tensor, levels: Tensor) -> Tensor:
    """Towards a 3 x 3 mean whose centre counts five times; the outermost pixels stay as they are."""
    wide = images.short()
    inner = wide[..., 1:-1, 1:-1]
    across = wide[..., :-2] + wide[..., 1:-1] + wide[..., 2:]
    total = across[..., :-2, :] + across[..., 1:-1, :] + across[..., 2:, :] + 4 * inner
    smooth = images.clone()
    smooth[..., 1:-1, 1:-1] = _floor((total + 6).float() / 13)
    return blend(smooth, images, _factor(levels))


def _factor(levels: Tensor) -> Tensor:
    return torch.tensor(FACTORS, dtype=torch.float32, device=levels.device)[levels.abs()]


def _floor(values: Tensor) -> Tensor:
    """Floats in 0..255 as bytes, without their fractions."""
    return values.short().byte()  # four times as fast as directly


def _geometric(images: Tensor, levels: Tensor, name: str) -> Tensor:
    """Each output pixel takes the nearest source pixel, or black where that lies outside."""
    sources, insides = _source_pixels(name, *images.shape[-2:], images.device)
    source = sources.index_select(0, levels + TOP_LEVEL)[:, None]
    inside = insides.index_select(0, levels + TOP_LEVEL)[:, None]
    taken = images.flatten(2).gather(2, source.expand(-1, images.shape[1], -1))
    return taken.mul_(inside).view_as(images)


@lru_cache(maxsize=16)
def _source_pixels(name: str, height: int, width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """For each level from -10 to 10 and each pixel: its source pixel, and whether that is inside (1) or not (0).

    A table, since the levels are few: found once, in fixed point, and the same on every device.
    """
    levels = range(-TOP_LEVEL, TOP_LEVEL + 1)
    maps = torch.tensor([source_map(name, level, height, width) for level in levels], device=device)
    a, b, c, d, e, f = maps[:, :, None, None].unbind(1)
    x, y = torch.arange(width, device=device), torch.arange(height, device=device)[:, None]
    column, row = (a * x + b * y + c) >> _POSITION, (d * x + e * y + f) >> _POSITION
    inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
    return (row * width + column).where(inside, 0).flatten(1), inside.byte().flatten(1)


def source_map(name: str, level: int, height: int, width: int) -> list[int]:
    """(a, b, c, d, e, f): output pixel (x, y) shows (a x + b y + c, d x + e y + f), in 1/65536 pixels and cut."""
    return _fixed_point(_affine_map(name, level, height, width))


def _affine_map(name: str, level: int, height: int, width: int) -> tuple[float, ...]:
    """(a, b, c, d, e, f): output (x, y) shows source (a x + b y + c, d x + e y + f)."""
    match name:
        case "shear-x":
            return (1, level * 0.3 / TOP_LEVEL, 0, 0, 1, 0)
        case "shear-y":
            return (1, 0, 0, level * 0.3 / TOP_LEVEL, 1, 0)
        case "translate-x":
            return (1, 0, _whole_pixels(level, width), 0, 1, 0)
        case "translate-y":
            return (1, 0, 0, 0, 1, _whole_pixels(level, height))
    angle = math.radians(level * 30 / TOP_LEVEL)
    cosine, sine, middle_x, middle_y = math.cos(angle), math.sin(angle), width / 2, height / 2
    start_x = middle_x - cosine * middle_x + sine * middle_y
    start_y = middle_y - sine * middle_x - cosine * middle_y
    return (cosine, -sine, start_x, sine, cosine, start_y)


def _whole_pixels(level: int, side: int) -> int:
    """Three tenths of the side at the top level, cut to a whole number towards zero."""
    return int(math.copysign(3 * abs(level) * side // (10 * TOP_LEVEL), level))


def _fixed_point(affine: tuple[float, ...]) -> list[int]:
    """The map in 1/65536 pixels, seen from the centres of the pixels."""
    a, b, c, d, e, f = affine
    values = (a, b, c + (a + b) / 2, d, e, f + (d + e) / 2)
    return [math.floor(value * 2**_POSITION + 0.5) for value in values]


OPERATIONS: dict[str, Operation] = {
    "identity": _identity,
    "autocontrast": _autocontrast,
    "brightness": _brightness,
    "color": _color,
    "contrast": _contrast,
    "equalize": _equalize,
    "posterize": _posterize,
    "rotate": partial(_geometric, name="rotate"),
    "sharpness": _sharpness,
    "shear-x": partial(_geometric, name="shear-x"),
    "shear-y": partial(_geometric, name="shear-y"),
    "solarize": _solarize,
    "translate-x": partial(_geometric, name="translate-x"),
    "translate-y": partial(_geometric, name="translate-y"),
}
GEOMETRIC = ("rotate", "shear-x", "shear-y", "translate-x", "translate-y")
_IDENTITY = list(OPERATIONS).index("identity")
