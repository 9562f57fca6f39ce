"""The fourteen operations and cutout against Pillow, and how they are drawn."""

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from semifed.data.randaugment import CUTOUT_GREY, OPERATIONS, blend, cutout, luminance, randaugment
from semifed.keys import fold

SHAPES = [(3, 32, 32), (1, 28, 28), (3, 20, 33)]
Reference = Callable[[Image.Image, int], Image.Image]


def _affine(image: Image.Image, *matrix: float) -> Image.Image:
    return image.transform(image.size, Image.Transform.AFFINE, matrix, resample=Image.Resampling.NEAREST)


def _factor(level: int) -> float:
    return abs(level) * 0.9 / 10 + 0.05


# FixMatch's pool in Pillow; the geometric operations take the sign of the level.
REFERENCE: dict[str, Reference] = {
    "identity": lambda image, _: image,
    "autocontrast": lambda image, _: ImageOps.autocontrast(image),
    "brightness": lambda image, level: ImageEnhance.Brightness(image).enhance(_factor(level)),
    "color": lambda image, level: ImageEnhance.Color(image).enhance(_factor(level)),
    "contrast": lambda image, level: ImageEnhance.Contrast(image).enhance(_factor(level)),
    "equalize": lambda image, _: ImageOps.equalize(image),
    "posterize": lambda image, level: ImageOps.posterize(image, int(abs(level) * 4 / 10) + 4),
    "rotate": lambda image, level: image.rotate(int(level * 30 / 10), resample=Image.Resampling.NEAREST),
    "sharpness": lambda image, level: ImageEnhance.Sharpness(image).enhance(_factor(level)),
    "shear-x": lambda image, level: _affine(image, 1, level * 0.3 / 10, 0, 0, 1, 0),
    "shear-y": lambda image, level: _affine(image, 1, 0, 0, level * 0.3 / 10, 1, 0),
    "solarize": lambda image, level: ImageOps.solarize(image, 256 - int(abs(level) * 256 / 10)),
    "translate-x": lambda image, level: _affine(image, 1, 0, int(level * 0.3 / 10 * image.width), 0, 1, 0),
    "translate-y": lambda image, level: _affine(image, 1, 0, 0, 0, 1, int(level * 0.3 / 10 * image.height)),
}
# Pillow stretches in floating point and can end one level below the exact quotient; all else is equal.
TOLERANCE = {"autocontrast": 1}


def test_the_pool_is_the_fourteen_operations_of_fixmatch() -> None:
    assert list(OPERATIONS) == list(REFERENCE)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", REFERENCE)
def test_operation_equals_pillow_at_every_level(name: str, shape: tuple[int, int, int]) -> None:
    levels = torch.tensor([level for level in range(-10, 11) if level != 0])
    for images in (_noise(len(levels), shape), _smooth(len(levels), shape), _flat(len(levels), shape)):
        ours = OPERATIONS[name](images, levels)
        theirs = torch.stack(
            [_tensor(REFERENCE[name](_pillow(image), int(level))) for image, level in zip(images, levels, strict=True)]
        )
        assert ours.dtype == torch.uint8
        assert (ours.int() - theirs.int()).abs().max() <= TOLERANCE.get(name, 0)


@pytest.mark.parametrize("factor", [0.0, 0.3, 1.0, 1.4])
def test_blend_equals_pillow_also_beyond_the_image(factor: float) -> None:
    images = _noise(4, (3, 16, 16))
    ours = blend(luminance(images), images, torch.full((4,), factor))
    theirs = torch.stack([_tensor(ImageEnhance.Color(_pillow(image)).enhance(factor)) for image in images])
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("name", REFERENCE)
def test_operation_takes_the_smallest_images(name: str, size: int) -> None:
    images = _noise(3, (3, size, size))
    assert OPERATIONS[name](images, torch.tensor([1, 5, 9])).shape == images.shape


def test_each_image_draws_one_of_the_pool_at_a_level_below_the_magnitude() -> None:
    image, draws, magnitude = _picture(1, (3, 40, 40)), 4000, 4
    outcomes: dict[bytes, tuple[str, int]] = {}
    for name, operation in OPERATIONS.items():
        for level in sorted(set(range(-magnitude, magnitude + 1)) - {0}, key=abs):
            outcomes.setdefault(_bytes(operation(image, torch.tensor([level]))), (name, level))
    keys = fold(torch.tensor(5), torch.arange(draws))
    results = randaugment(image.expand(draws, -1, -1, -1), keys, 1, magnitude, 1.0)
    seen = Counter(outcomes[_bytes(result)] for result in results)
    share = Counter[str]()
    for (name, level), count in seen.items():
        assert abs(level) < magnitude
        share[name] += count
    assert all(abs(share[name] / draws - 1 / 14) < 0.02 for name in OPERATIONS)
    signed = {level for name, level in seen if name == "rotate"}
    assert signed == {-3, -2, -1, 1, 2, 3}


def test_an_operation_is_left_out_with_the_given_probability() -> None:
    images = _picture(1, (3, 32, 32)).expand(2000, -1, -1, -1)
    keys = fold(torch.tensor(8), torch.arange(2000))
    for probability, unchanged in ((0.0, 1.0), (0.5, 1 - 0.5 * 13 / 14), (1.0, 1 / 14)):
        same = (randaugment(images, keys, 1, 10, probability) == images).flatten(1).all(1)
        assert same.float().mean().item() == pytest.approx(unchanged, abs=0.04)


def test_operations_follow_one_another() -> None:
    images, keys = _picture(50, (3, 32, 32)), fold(torch.tensor(2), torch.arange(50))
    assert torch.equal(randaugment(images, keys, 0, 10, 1.0), images)
    once, twice = (randaugment(images, keys, count, 10, 1.0) for count in (1, 2))
    assert (once != twice).flatten(1).any(1).float().mean() > 0.8


@pytest.mark.parametrize("side", [1, 7, 16, 40])
def test_cutout_is_a_grey_square_inside_the_image(side: int) -> None:
    images, keys = torch.zeros(2000, 3, 32, 30, dtype=torch.uint8), fold(torch.tensor(3), torch.arange(2000))
    covered = cutout(images, keys, side) == CUTOUT_GREY
    assert torch.equal(covered[:, 0], covered[:, 2])
    heights, widths = covered[:, 0].any(2).sum(1), covered[:, 0].any(1).sum(1)
    assert torch.equal(heights * widths, covered[:, 0].sum((1, 2)))
    assert int(heights.max()) == min(side, 32)
    assert int(widths.max()) == min(side, 30)
    assert int(heights.min()) == 1 + side // 2  # centred on the last row
    assert covered[:, 0].any(2).any(0).all()
    assert covered[:, 0].any(1).any(0).all()


def _noise(count: int, shape: tuple[int, int, int]) -> Tensor:
    return torch.randint(0, 256, (count, *shape), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


def _smooth(count: int, shape: tuple[int, int, int]) -> Tensor:
    """Slow gradients of few values and low contrast: long runs of equal pixels, and empty bins in the histogram."""
    channels, height, width = shape
    rows, columns = torch.arange(height)[:, None], torch.arange(width)
    layers = [40 + 3 * channel + (2 + channel) * rows + (4 - channel) * columns for channel in range(channels)]
    images = torch.stack(layers)[None] + torch.arange(count)[:, None, None, None]
    return images.clamp(0, 255).byte()


def _picture(count: int, shape: tuple[int, int, int]) -> Tensor:
    """Images that every operation changes: rough, neither black nor white anywhere, with some very bright pixels."""
    return _noise(count, shape) // 8 * 7 + 20


def _flat(count: int, shape: tuple[int, int, int]) -> Tensor:
    """Images of one value, which autocontrast and equalize must leave alone."""
    values = torch.linspace(0, 255, count).byte()[:, None, None, None]
    return values.expand(count, *shape).contiguous()


def _pillow(image: Tensor) -> Image.Image:
    array = image.permute(1, 2, 0).numpy()
    return Image.fromarray(np.ascontiguousarray(array[:, :, 0] if array.shape[2] == 1 else array))


def _tensor(image: Image.Image) -> Tensor:
    array = torch.from_numpy(np.array(image))
    return array[None] if array.dim() == 2 else array.permute(2, 0, 1)


def _bytes(image: Tensor) -> bytes:
    return bytes(image.flatten().numpy())
