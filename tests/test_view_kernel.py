"""The kernel of the views gives the bits of the torch code, and leaves to it what it cannot take."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

import semifed.data.views as torch_form
from semifed import library
from semifed.data import kernels
from semifed.data.randaugment import OPERATIONS, TOP_LEVEL, whole
from semifed.data.views import VIEW_NAMES, View, ViewSettings, views
from semifed.keys import fold, key, uniform

needs_kernel = pytest.mark.skipif(
    kernels._loaded() is None or library.switched_off(), reason=f"no kernel: {library.failures}"
)
SHAPES = [(1, 28, 28), (3, 32, 32), (3, 20, 33), (1, 5, 70), (4, 9, 14), (2, 3, 3), (3, 2, 5), (5, 1, 4), (1, 1, 1)]
EVERYTHING = ViewSettings(
    weak=("crop", "shift", "flip", "contrast", "grey"), operations=4, magnitude=11, probability=0.9, cutout=7, grey=0.3
)
ONE_OPERATION = ViewSettings(weak=(), operations=1, magnitude=11, probability=1.0, cutout=0)
STRONG, RANDAUGMENT = VIEW_NAMES.index("strong"), torch_form._FOLDS.randaugment
Shape = tuple[int, int, int]


@needs_kernel
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", VIEW_NAMES)
def test_every_view_has_the_same_bits(name: str, shape: Shape) -> None:
    view = _view(EVERYTHING, name, shape[0])
    for images in _pictures(150, shape).values():
        _assert_same(view, images, _keys(150))


@needs_kernel
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_operation_has_the_same_bits_at_every_level(shape: Shape) -> None:
    keys = _keys(3000)
    kind, _, level, way = uniform(fold(fold(keys, STRONG), RANDAUGMENT), 4).unbind(1)
    levels = whole(level, 1, TOP_LEVEL) * (2 * whole(way, 0, 1) - 1)
    drawn = set(zip(whole(kind, 0, len(OPERATIONS) - 1).tolist(), levels.tolist(), strict=True))
    assert len(drawn) == len(OPERATIONS) * 2 * TOP_LEVEL
    view = _view(ONE_OPERATION, "strong", shape[0])
    for name, images in _pictures(3000, shape).items():
        if name in ("noise", "dark", "slope"):
            _assert_same(view, images, keys)


@needs_kernel
@pytest.mark.parametrize(
    "changes",
    [
        {"shift": 40, "crop": 1000},  # further than the image reaches: mirrored several times
        {"shift": 0, "crop": 0},
        {"weak": ("flip",)},
        {"weak": ("grey", "contrast"), "contrast": 1.0, "grey": 1.0},
        {"weak": ("contrast",), "contrast": 0.0},
        {"cutout": 1},
        {"cutout": 1000},
        {"operations": 0},
        {"operations": 9, "probability": 1.0, "magnitude": 2},
        {"probability": 0.0},
    ],
    ids=str,
)
def test_settings_at_their_limits_have_the_same_bits(changes: dict[str, Any]) -> None:
    settings = dataclasses.replace(EVERYTHING, **changes)
    for shape in ((3, 11, 16), (1, 28, 28)):
        for name in ("weak", "strong"):
            for flips in (False, True):
                view = views(settings, [0.4] * shape[0], [0.3] * shape[0], flips)[name]
                _assert_same(view, _pictures(200, shape)["noise"], _keys(200))


@needs_kernel
def test_channels_are_normalised_by_their_own_numbers() -> None:
    made = views(EVERYTHING, [0.4914, 0.4822, 0.4465], [0.2023, 0.1994, 0.2010], flips=True)
    every = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16).expand(2, 3, 16, 16).contiguous()
    for view in made.values():
        _assert_same(view, every, _keys(2))


@needs_kernel
def test_the_kernel_does_the_work_where_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    images, keys = _pictures(4, (3, 8, 8))["noise"], _keys(4)
    expected = {name: _view(EVERYTHING, name, 3)(images, keys) for name in VIEW_NAMES}
    monkeypatch.setattr(torch_form, "normalise", None)
    for name in VIEW_NAMES:
        assert torch.equal(_view(EVERYTHING, name, 3)(images, keys), expected[name])
        assert _view(EVERYTHING, name, 3)(images[:0], keys[:0]).shape == (0, 3, 8, 8)


@pytest.mark.parametrize("name", VIEW_NAMES)
def test_what_the_kernel_cannot_take_is_left_to_torch(name: str) -> None:
    images, keys, view = _pictures(4, (3, 8, 8))["noise"], _keys(4), _view(EVERYTHING, name, 3)
    expected = view(images, keys)
    last = images.contiguous(memory_format=torch.channels_last)
    assert torch.equal(view(last, keys), expected)
    assert name != "clean" or view(last, keys).is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(view(images[::2], keys[::2]), expected[::2])
    assert torch.equal(view(images.repeat(1, 1, 1, 2)[..., :8], keys), expected)
    kernel = kernels.Kernel(kernels.Recipe(), torch_form._FOLDS, [1.0] * 3, [0.0] * 3)
    long = torch.zeros(1, 3, 1, kernels.LARGEST_SIDE + 1, dtype=torch.uint8)
    for odd in (last, images[:, :2].contiguous(), images[0], images[:3], images[..., :0], images.to("meta"), long):
        assert kernel(odd, keys[: 1 if odd is long else 4]) is None
    assert kernel(images, keys.int()) is None
    assert kernel(images, keys.repeat(2)[::2]) is None


def test_without_a_compiler_torch_makes_the_views(monkeypatch: pytest.MonkeyPatch) -> None:
    images, keys, view = _pictures(20, (3, 8, 8))["noise"], _keys(20), _view(EVERYTHING, "strong", 3)
    expected = view(images, keys)
    monkeypatch.setattr(kernels, "_loaded", lambda: None)
    assert torch.equal(view(images, keys), expected)


def _view(settings: ViewSettings, name: str, channels: int) -> View:
    mean, std = [0.45 + 0.01 * number for number in range(channels)], [0.22] * channels
    return views(settings, mean, std, flips=True)[name]


def _assert_same(view: View, images: Tensor, keys: Tensor) -> None:
    """Bits and places in memory."""
    before = images.clone()
    ours = view(images, keys)
    with library.off():
        theirs = view(images, keys)
    assert torch.equal(ours.view(torch.int32), theirs.view(torch.int32))
    assert ours.stride() == theirs.stride()
    assert torch.equal(images, before)


def _keys(count: int) -> Tensor:
    return fold(torch.tensor(key(3, "kernel")), torch.arange(count))


def _pictures(count: int, shape: Shape) -> dict[str, Tensor]:
    noise = torch.randint(0, 256, (count, *shape), dtype=torch.uint8, generator=torch.Generator().manual_seed(2))
    slope = torch.arange(noise[0].numel()).view(shape) + torch.arange(count)[:, None, None, None]
    return {
        "noise": noise,
        "dark": noise * (noise > 200),  # as digits are: mostly black
        "faint": noise // 16 + 120,
        "two values": (noise > 127).byte() * 254 + 1,
        "slope": (slope // 3).clamp(0, 255).byte(),
        "one value": noise[:, :1, :1, :1].expand_as(noise).contiguous(),
        "black": torch.zeros_like(noise),
        "white": torch.full_like(noise, 255),
    }
