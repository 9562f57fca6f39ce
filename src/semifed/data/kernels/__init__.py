"""Views of images by a kernel: the bits of views.py's own torch code, image by image in the cache, many times as fast.

Without a compiler, on another device, for images that do not lie in memory in order and with SEMIFED_KERNELS=off the
torch code makes them.
"""

import ctypes
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from semifed import library
from semifed.data.randaugment import CUTOUT_GREY, FACTORS, GEOMETRIC, OPERATIONS, TOP_LEVEL, source_map

LARGEST_SIDE = 4096
"""In pixels: what the kernel's 32 bits hold in 1/65536 pixels."""


class Recipe(NamedTuple):
    """What a view does, in this order; a step that has a range is left out where that is None."""

    number: int = 0  # that keys are folded with
    crop: int | None = None
    shift: int | None = None
    flip: bool = False
    contrast: float | None = None
    grey: float | None = None
    operations: int = 0
    magnitude: int = 2
    probability: float = 0.0
    cutout: int = 0


class Folds(NamedTuple):
    """What the key of a view is folded with for RandAugment and for cutout."""

    randaugment: int
    cutout: int


class _Recipe(ctypes.Structure):
    """`recipe` of the C++ side."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("number", "crop", "shift", "flips", "contrasts", "greys")),
        *((name, ctypes.c_int64) for name in ("operations", "magnitude", "cutout")),
        *((name, ctypes.c_float) for name in ("contrast", "grey", "probability")),
    )


class _Shape(ctypes.Structure):
    """`shape` of the C++ side."""

    _fields_ = (
        ("count", ctypes.c_int64),
        *((name, ctypes.c_int32) for name in ("channels", "height", "width", "kinds")),
        *((name, ctypes.c_int32) for name in ("for_randaugment", "for_cutout", "cutout_grey")),
    )


class Kernel:
    """One view of data with this scale and offset of each channel."""

    def __init__(self, recipe: Recipe, folds: Folds, scale: Sequence[float], offset: Sequence[float]) -> None:
        self._folds, self._channels = folds, len(scale)
        self._recipe = _Recipe(
            recipe.number,
            -1 if recipe.crop is None else recipe.crop,
            -1 if recipe.shift is None else recipe.shift,
            recipe.flip,
            recipe.contrast is not None,
            recipe.grey is not None,
            recipe.operations,
            recipe.magnitude,
            recipe.cutout,
            recipe.contrast or 0.0,
            recipe.grey or 0.0,
            recipe.probability,
        )
        self._scales, self._offsets = _floats(*scale), _floats(*offset)

    def __call__(self, images: Tensor, keys: Tensor) -> Tensor | None:
        """The view, or None if torch has to make it."""
        if library.switched_off() or not self._fit(images, keys) or (code := _loaded()) is None:
            return None
        count, channels, height, width = images.shape
        result = images.new_empty(images.shape, dtype=torch.float32)
        shape = _Shape(count, channels, height, width, len(OPERATIONS), *self._folds, CUTOUT_GREY)
        frame = ctypes.byref(shape), ctypes.byref(self._recipe)
        tables = self._scales, self._offsets, _floats(*FACTORS), _maps(height, width)
        if code.see(*frame, *map(_address, (images, keys)), *tables, _address(result)):
            raise MemoryError("a kernel found no memory to work in")
        return result

    def _fit(self, images: Tensor, keys: Tensor) -> bool:
        """Whether the kernel can take these; torch takes everything else, and knows best what is wrong with it."""
        if not (images.is_cpu and keys.is_cpu and images.dim() == 4 and keys.shape == images.shape[:1]):
            return False
        _, channels, height, width = images.shape
        return (
            keys.dtype == torch.int64
            and keys.is_contiguous()
            and channels == self._channels
            and 0 < height <= LARGEST_SIDE
            and 0 < width <= LARGEST_SIDE
            and channels * height * width < 2**31
            and images.stride() == (channels * height * width, height * width, width, 1)
            and not torch._C._are_functorch_transforms_active()
        )


def _address(tensor: Tensor) -> Any:
    return ctypes.c_void_p(tensor.data_ptr())


@functools.lru_cache(maxsize=64)
def _floats(*values: float) -> Any:
    return (ctypes.c_float * len(values))(*values)


@functools.lru_cache(maxsize=16)
def _maps(height: int, width: int) -> Any:
    """[14][21][6]: for every operation and level from where a pixel comes, nothing for those that are not geometric."""
    levels = range(-TOP_LEVEL, TOP_LEVEL + 1)
    numbers = [
        number
        for name in OPERATIONS
        for level in levels
        for number in (source_map(name, level, height, width) if name in GEOMETRIC else [0] * 6)
    ]
    return (ctypes.c_int32 * len(numbers))(*numbers)


@functools.cache
def _loaded() -> Any:
    # Products and sums are rounded one by one, as torch's two operations do.
    return library.load(("data/kernels/views.cpp",), ("-ffp-contract=off",)).code
