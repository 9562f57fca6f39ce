"""Weak and strong views: what they do to an image, and that its own key alone decides it."""

import hashlib
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from semifed.data.views import VIEW_NAMES, View, ViewSettings, WeakStep, views
from semifed.errors import SettingError
from semifed.keys import fold, integers, key

EVERYTHING = ViewSettings(weak=("crop", "shift", "flip", "contrast", "grey"), operations=4, probability=1.0, cutout=8)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", VIEW_NAMES)
def test_an_image_does_not_depend_on_its_neighbours(name: str, channels: int) -> None:
    images, keys = _images(100, channels), _keys(100)
    view = views(EVERYTHING, [0.45] * channels, [0.22] * channels, flips=True)[name]
    whole = view(images, keys)
    alone = torch.cat([view(images[row : row + 1], keys[row : row + 1]) for row in range(0, 100, 4)])
    assert torch.equal(whole[::4], alone)
    order = torch.randperm(100, generator=torch.Generator().manual_seed(4))
    assert torch.equal(view(images[order], keys[order]), whole[order])


@pytest.mark.parametrize("name", VIEW_NAMES)
def test_a_view_is_float32_and_leaves_images_and_global_randomness_alone(name: str) -> None:
    images, keys = _images(20), _keys(20)
    before, state = images.clone(), torch.get_rng_state()
    result = views(EVERYTHING, [0.5] * 3, [0.25] * 3, flips=True)[name](images, keys)
    assert result.dtype == torch.float32
    assert result.shape == images.shape
    assert torch.equal(images, before)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("name", VIEW_NAMES)
def test_everything_happens_on_the_device_of_the_images(name: str) -> None:
    """A tensor made without naming the images' device would land on the default one and could not be mixed in."""
    images, keys = _images(60)[..., :19, :23], _keys(60)  # a size no other test has, so that no table is made yet
    view = _raw(EVERYTHING)[name]
    with torch.device("meta"):
        result = view(images, keys)
    assert torch.equal(result, view(images, keys))


@pytest.mark.parametrize("name", VIEW_NAMES)
def test_an_empty_batch_stays_empty(name: str) -> None:
    assert _raw(EVERYTHING)[name](_images(0), _keys(0)).shape == (0, 3, 32, 32)


def test_clean_is_normalisation_only() -> None:
    images, mean, std = _images(5), [0.49, 0.48, 0.45], [0.25, 0.24, 0.26]
    clean = views(ViewSettings(), mean, std, flips=True)["clean"](images, _keys(5))
    expected = (images.double() / 255 - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None]
    assert torch.allclose(clean.double(), expected, atol=1e-6, rtol=0)


def test_only_uint8_images_are_taken() -> None:
    with pytest.raises(TypeError, match="uint8"):
        _raw(ViewSettings())["weak"](_images(2).float(), _keys(2))


@pytest.mark.parametrize("step", ["shift", "crop"])
def test_shift_and_crop_move_by_whole_pixels_with_mirror_padding(step: WeakStep) -> None:
    image, draws = _images(1), 1500
    settings = ViewSettings(weak=(step,), shift=2 if step == "shift" else 9, crop=2 if step == "crop" else 9)
    padded = np.pad(image[0].numpy(), ((0, 0), (2, 2), (2, 2)), mode="reflect")
    places = {padded[:, y : y + 32, x : x + 32].tobytes(): (y - 2, x - 2) for y in range(5) for x in range(5)}
    results = _raw(settings)["weak"](image.expand(draws, -1, -1, -1), _keys(draws)).byte()
    seen = Counter(places[result.numpy().tobytes()] for result in results)
    assert len(seen) == 25
    assert all(abs(count / draws - 1 / 25) < 0.025 for count in seen.values())


def test_shift_larger_than_the_image_still_mirrors() -> None:
    image = _images(1)[:, :, :3, :3]
    padded = np.pad(image[0].numpy(), ((0, 0), (7, 7), (7, 7)), mode="reflect")
    places = {padded[:, y : y + 3, x : x + 3].tobytes() for y in range(15) for x in range(15)}
    results = _raw(ViewSettings(shift=7))["shift"](image.expand(200, -1, -1, -1), _keys(200)).byte()
    assert {result.numpy().tobytes() for result in results} <= places


def test_flip_mirrors_every_second_image() -> None:
    images = _images(1000)
    result = _raw(ViewSettings())["flip"](images, _keys(1000)).byte()
    flipped = (result == images.flip(3)).flatten(1).all(1)
    kept = (result == images).flatten(1).all(1)
    assert (flipped ^ kept).all()
    assert flipped.float().mean().item() == pytest.approx(0.5, abs=0.05)


def test_digits_are_never_flipped() -> None:
    images, keys, settings = _images(200, 1), _keys(200), ViewSettings(weak=("shift", "flip"))
    digits = _raw(settings, 1, flips=False)
    assert torch.equal(digits["flip"](images, keys), digits["clean"](images, keys))
    unflipped = _raw(ViewSettings(weak=("shift",)), 1, flips=True)
    for name in ("weak", "strong"):
        assert torch.equal(digits[name](images, keys), unflipped[name](images, keys))


def test_no_weak_steps_is_no_augmentation() -> None:
    images, keys = _images(10), _keys(10)
    bare = _raw(ViewSettings(weak=(), operations=0, cutout=0))
    for name in ("weak", "strong"):
        assert torch.equal(bare[name](images, keys), bare["clean"](images, keys))


def test_crop_comes_before_shift_and_flip() -> None:
    """The mirror of the crop is inside the picture that is shifted, so the order shows at the edges."""
    images, keys = _images(300), _keys(300)
    both = _raw(ViewSettings(weak=("shift", "crop"), shift=3, crop=3))["weak"](images, keys)
    cropped = _raw(ViewSettings(weak=("crop",), crop=3))["weak"](images, keys).byte()
    assert torch.equal(_raw(ViewSettings(weak=("shift",), shift=3))["weak"](cropped, keys), both)


def test_contrast_stays_in_its_range() -> None:
    images = torch.full((500, 3, 8, 8), 100, dtype=torch.uint8)
    images[..., ::2] = 140
    result = _raw(ViewSettings(weak=("contrast",), contrast=0.5))["weak"](images, _keys(500))
    spread = result[:, 0, 0, 0] - result[:, 0, 0, 1]
    assert 20 <= spread.min() < 22
    assert 58 < spread.max() <= 60
    assert torch.equal(_raw(ViewSettings(weak=("contrast",), contrast=0.0))["weak"](images, _keys(500)), images.float())


def test_grey_takes_the_colour_of_a_share_of_the_images() -> None:
    images, keys = _images(1000), _keys(1000)
    result = _raw(ViewSettings(weak=("grey",), grey=0.25))["weak"](images, keys).byte()
    grey = (result[:, 0] == result[:, 2]).flatten(1).all(1)
    assert grey.float().mean().item() == pytest.approx(0.25, abs=0.04)
    assert torch.equal(result[~grey], images[~grey])
    first = int(grey.nonzero()[0])
    pillow = Image.fromarray(images[first].permute(1, 2, 0).contiguous().numpy()).convert("L")
    assert np.array_equal(np.array(pillow), result[first, 1].numpy())


def test_views_of_the_same_keys_are_independent_and_of_other_keys_differ() -> None:
    images, keys = _images(200), _keys(200)
    plain = _raw(ViewSettings(operations=0, cutout=0))
    weak, strong, again = plain["weak"](images, keys), plain["strong"](images, keys), plain["weak"](images, keys + 1)
    for other in (strong, again):
        assert (weak != other).flatten(1).any(1).float().mean() > 0.95


def test_draws_are_the_same_in_every_version() -> None:
    """A change here changes every recorded result: list it in the changelog."""
    images, keys = _images(64), _keys(64)
    digests = {name: _digest(view(images, keys)) for name, view in _raw(EVERYTHING).items()}
    assert digests == {
        "clean": "067332b4fa2bf4d2",
        "weak": "6d6cd532f19b42a1",
        "strong": "6e0701fdc0b333f5",
        "shift": "4358194fde8ca7bd",
        "flip": "8ba24cd29ff2fefa",
    }


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weak": ("shift", "blur")}, "views.weak: 'blur' is unknown; known are: crop, shift, flip, contrast, grey"),
        ({"weak": ("flip", "flip")}, "views.weak: 'flip' is named twice"),
        ({"shift": -1}, "views.shift: must be at least 0, not -1"),
        ({"shift": 2.5}, "views.shift: expected a whole number, not 2.5"),
        ({"crop": True}, "views.crop: expected a whole number, not True"),
        ({"operations": -2}, "views.operations: must be at least 0, not -2"),
        ({"cutout": -1}, "views.cutout: must be at least 0, not -1"),
        ({"magnitude": 1}, "views.magnitude: must be at least 2 and at most 11, not 1"),
        ({"magnitude": 12}, "views.magnitude: must be at least 2 and at most 11, not 12"),
        ({"probability": 1.5}, "views.probability: must be at least 0 and at most 1, not 1.5"),
        ({"contrast": float("nan")}, "views.contrast: must be at least 0 and at most 1, not nan"),
        ({"grey": "often"}, "views.grey: expected a number, not 'often'"),
    ],
    ids=str,
)
def test_settings_that_cannot_be_are_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError) as error:
        ViewSettings(**changes)
    assert str(error.value) == message


def _images(count: int, channels: int = 3) -> Tensor:
    pixels = integers(fold(_keys(count), channels), channels * 32 * 32, 20, 240)
    return pixels.byte().view(count, channels, 32, 32)


def _keys(count: int) -> Tensor:
    return fold(torch.tensor(key(1, "views")), torch.arange(count))


def _raw(settings: ViewSettings, channels: int = 3, flips: bool = True) -> dict[str, View]:
    """Views whose result is still on the scale 0..255."""
    return views(settings, [0.0] * channels, [1 / 255] * channels, flips)


def _digest(images: Tensor) -> str:
    return hashlib.blake2b(images.byte().numpy().tobytes(), digest_size=8).hexdigest()
