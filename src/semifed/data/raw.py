"""What every reader of a user's own data hands on: pixels or vectors, labels with blanks, and what is for the test."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from semifed.data.file_settings import FileSettings
from semifed.data.folders import natural
from semifed.data.randaugment import luminance
from semifed.errors import DataError

UNLABELLED = -1
LARGEST = 16 * 2**30  # bytes that a file may unpack to
MOST_CLASSES = 100_000
CHUNK = 1024  # images that are resized at once, to bound the memory


class Raw(NamedTuple):
    """Data as they were found, training and test samples in any order."""

    images: Tensor  # uint8 [N, channels, height, width], or float32 [N, columns]
    labels: Tensor  # int64 [N], -1 without a label
    test: Tensor  # bool [N]
    classes: tuple[str, ...]
    names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def number_names(where: str, names: Sequence[str | None], settings: FileSettings) -> tuple[Tensor, tuple[str, ...]]:
    """Class names as numbers, blanks as -1, and the classes in order."""
    classes = settings.classes or natural({name for name in names if name is not None})
    place: dict[str | None, int] = {name: number for number, name in enumerate(classes)} | {None: UNLABELLED}
    for row, name in enumerate(names):
        if name not in place:
            raise DataError(f"{where}: the label {name!r} of row {row} is not one of files.classes")
    return torch.tensor([place[name] for name in names], dtype=torch.int64), tuple(classes)


def check_numbers(
    where: str, labels: NDArray[np.generic], settings: FileSettings, names: Sequence[str] = ()
) -> tuple[Tensor, tuple[str, ...]]:
    """Labels that are numbers already, with the classes they stand for; -1 and what is not a number are blanks."""
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1 or labels.dtype.kind not in "iubf":
        raise DataError(f"{where}: labels are {labels.dtype} of shape {labels.shape}, wanted one whole number a sample")
    if labels.dtype.kind == "f":
        blank = np.isnan(labels)
        whole = np.where(blank, UNLABELLED, labels)
        for row in np.flatnonzero(whole != np.round(whole))[:1]:
            raise DataError(f"{where}: label {whole[row]} of sample {row} is not a whole number")
        labels = whole
    numbers = labels.astype(np.int64)
    classes = (
        settings.classes or tuple(names) or tuple(map(str, range(min(int(numbers.max(initial=0)), MOST_CLASSES) + 1)))
    )
    for row in np.flatnonzero((numbers < UNLABELLED) | (numbers >= len(classes)))[:1]:
        raise DataError(
            f"{where}: label {numbers[row]} of sample {row} is not in 0 to {len(classes) - 1}, nor -1 for no label"
        )
    return torch.from_numpy(numbers), tuple(classes)


def as_samples(where: str, array: NDArray[np.generic], settings: FileSettings) -> Tensor:
    """An array as uint8 images [N, channels, height, width], or as float32 vectors [N, columns]."""
    if array.dtype.kind not in "uifb":
        raise DataError(f"{where}: holds {array.dtype}, wanted numbers")
    if array.ndim == 2:
        return as_vectors(where, array)
    if array.ndim not in (3, 4) or 0 in array.shape:
        raise DataError(
            f"{where}: has shape {array.shape}, wanted [N, height, width], [N, height, width, channels], "
            "[N, channels, height, width] or [N, columns]"
        )
    return refit(torch.from_numpy(_channels_first(_bytes(where, array))), settings)


def as_vectors(where: str, array: NDArray[np.generic]) -> Tensor:
    """Rows of numbers, all of them finite."""
    vectors: NDArray[np.float32] = array.astype(np.float32)
    for row, column in np.argwhere(~np.isfinite(vectors))[:1]:
        raise DataError(f"{where}: row {row} has no number in column {column}; fill it in or leave the row out")
    return torch.from_numpy(vectors)


def _bytes(where: str, array: NDArray[np.generic]) -> NDArray[np.uint8]:
    """Pixels from 0 to 255."""
    if array.dtype == np.uint8:
        return array.view(np.uint8)
    if array.dtype == np.uint16:
        return (array.view(np.uint16) >> 8).astype(np.uint8)
    low, high = float(array.min()), float(array.max())
    if array.dtype.kind == "f" and low >= 0 and high <= 1:
        return np.rint(array.astype(np.float32) * 255).astype(np.uint8)
    if array.dtype.kind in "iub" and low >= 0 and high <= 255:
        return array.astype(np.uint8)
    raise DataError(
        f"{where}: pixels are {array.dtype} from {low:g} to {high:g}; wanted uint8 from 0 to 255, or floats from 0 to 1"
    )


def _channels_first(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The axis of the channels is the shorter one of the second and the last."""
    if pixels.ndim == 3:
        return pixels[:, None]
    last = pixels.shape[3] < pixels.shape[1]
    return np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)) if last else pixels


def refit(images: Tensor, settings: FileSettings) -> Tensor:
    """Images in the size and the number of channels that are asked for."""
    if settings.colour != "auto" and images.shape[1] not in (1, 3):
        raise DataError(f'files.colour: the images have {images.shape[1]} channels; set files.colour = "auto"')
    if settings.colour == "grey":
        images = luminance(images)
    elif settings.colour == "colour" and images.shape[1] == 1:
        images = images.expand(-1, 3, -1, -1).contiguous()
    size = settings.size
    if size is None or images.shape[2:] == (size, size):
        return images
    if settings.fit == "crop":
        side = min(images.shape[2:])
        top, left = ((length - side) // 2 for length in images.shape[2:])
        images = images[:, :, top : top + side, left : left + side]
    made = torch.empty(len(images), images.shape[1], size, size, dtype=torch.uint8)
    for start in range(0, len(images), CHUNK):
        some = F.interpolate(images[start : start + CHUNK].float(), (size, size), mode="bilinear", antialias=True)
        made[start : start + CHUNK] = some.round().clamp(0, 255).byte()
    return made
