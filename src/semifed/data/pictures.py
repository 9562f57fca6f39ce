"""Image files as tensors, the one way they are decoded: for training, for `semifed doctor` and for prediction alike.

An image is turned as its camera says, made grey or colour (transparency is dropped, 16 bits become 8), resized if
`files.size` says so, and is then uint8 [channels, height, width]. A file that claims more pixels than
`files.most_pixels` is refused before anything is unpacked.
"""

import io
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from semifed.data.file_settings import FileSettings
from semifed.errors import DataError

FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")
ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm", ".pnm")
TURNED = ("JPEG", "MPO", "TIFF", "WEBP")  # formats in which cameras say how they were held
GREY = ("1", "L", "LA", "La", "I", "I;16", "I;16L", "I;16B", "I;16N")
AT_ONCE = 64  # files that one thread takes at a time

Content = Path | bytes
_In = TypeVar("_In")
_Out = TypeVar("_Out")


class Look(NamedTuple):
    """What the first bytes of an image say."""

    width: int
    height: int
    mode: str

    @property
    def grey(self) -> bool:
        return self.mode in GREY


class Unreadable(NamedTuple):
    """Why an image cannot be used."""

    reason: str


def is_image(path: Path) -> bool:
    """Whether a file's name says that it is an image."""
    return path.suffix.lower() in ENDINGS


def read(
    contents: Sequence[Content], settings: FileSettings, shape: tuple[int, int, int] | None = None
) -> tuple[Tensor, dict[int, str]]:
    """All images as uint8 [N, channels, height, width], and the reason for each that cannot be read, by its place.

    What cannot be read stays black in the result; the caller leaves it out or stops. `shape` is that of the images a
    model was trained on; without it the images say it themselves.
    """
    looks = look(contents, settings)
    broken = {place: one.reason for place, one in enumerate(looks) if isinstance(one, Unreadable)}
    good = [one for one in looks if isinstance(one, Look)]
    channels, height, width = shape or common_shape(good, settings)
    images: NDArray[np.uint8] = np.zeros((len(contents), channels, height, width), np.uint8)

    def fill(place: int) -> None:
        if place not in broken:
            try:
                images[place] = decode(contents[place], settings, channels, (width, height))
            except Exception as error:  # damaged bytes make Pillow raise almost anything
                broken[place] = _reason(error)

    _all(fill, range(len(contents)))
    return torch.from_numpy(images), dict(sorted(broken.items()))


def common_shape(looks: Sequence[Look], settings: FileSettings) -> tuple[int, int, int]:
    """Channels, height and width of all images; an error if they differ and `files.size` is not given."""
    if not looks:
        raise DataError("there is no image that can be read: look with `semifed doctor`")
    grey = settings.colour == "grey" or (settings.colour == "auto" and all(one.grey for one in looks))
    channels = 1 if grey else 3
    if settings.size:
        return channels, settings.size, settings.size
    sizes = {(one.width, one.height) for one in looks}
    if len(sizes) > 1:
        some = ", ".join(f"{width}x{height}" for width, height in sorted(sizes)[:3])
        smallest = min(min(size) for size in sizes)
        raise DataError(
            f"the images have {len(sizes)} different sizes ({some}{', ...' if len(sizes) > 3 else ''}); "
            f"set files.size, e.g. {min(smallest, 64)}, to resize them"
        )
    ((width, height),) = sizes
    return channels, height, width


def look(contents: Sequence[Content], settings: FileSettings) -> list[Look | Unreadable]:
    """Size and mode of each image, from its first bytes."""

    def glance(content: Content) -> Look | Unreadable:
        try:
            with _opened(content, settings) as image:
                width, height = image.size
                sideways = image.format in TURNED and image.getexif().get(0x0112, 1) >= 5
                return Look(height, width, image.mode) if sideways else Look(width, height, image.mode)
        except Exception as error:  # damaged bytes make Pillow raise almost anything
            return Unreadable(_reason(error))

    return _all(glance, contents)


def decode(content: Content, settings: FileSettings, channels: int, size: tuple[int, int]) -> NDArray[np.uint8]:
    """One image as uint8 [channels, height, width]; a ValueError if its size is another and is not to be changed."""
    with _opened(content, settings) as opened:
        image: Image.Image = opened
        if settings.size and opened.format == "JPEG":
            opened.draft(opened.mode, (2 * settings.size, 2 * settings.size))  # a large photograph, at a fraction
        if opened.format in TURNED:
            image = ImageOps.exif_transpose(image)
        image.load()
        image = _in_mode(image, "L" if channels == 1 else "RGB")
    if settings.size and image.size != size:
        image = ImageOps.fit(image, size) if settings.fit == "crop" else image.resize(size)
    if image.size != size:
        raise ValueError(f"is {image.size[0]}x{image.size[1]}, the others {size[0]}x{size[1]}; set files.size")
    pixels = np.asarray(image)
    return pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)


def _in_mode(image: Image.Image, mode: str) -> Image.Image:
    """Grey or colour, 8 bits a channel."""
    if image.mode == "F":
        raise ValueError("has pixels that are floating-point numbers; save it with 8 or 16 bits")
    if image.mode.startswith("I"):
        deep = np.asarray(image).astype(np.int64).clip(0, 65535)
        image = Image.fromarray((deep >> 8).astype(np.uint8))
    if image.mode in ("P", "PA"):
        image = image.convert("RGBA")
    if image.mode in ("CMYK", "YCbCr", "LAB", "HSV"):
        image = image.convert("RGB")
    return image if image.mode == mode else image.convert(mode)


@contextmanager
def _opened(content: Content, settings: FileSettings) -> Iterator[Image.Image]:
    """An image of a known format and of a size that is no bomb; its pixels are not unpacked yet."""
    with Image.open(io.BytesIO(content) if isinstance(content, bytes) else content, formats=FORMATS) as image:
        pixels = image.size[0] * image.size[1]
        if pixels > settings.most_pixels:
            raise ValueError(f"claims {pixels:,} pixels, more than files.most_pixels = {settings.most_pixels:,}")
        yield image


def _all(work: Callable[[_In], _Out], items: Sequence[_In]) -> list[_Out]:
    """The work on every item, by a few threads: Pillow unpacks and resizes beside Python."""
    pieces = [items[start : start + AT_ONCE] for start in range(0, len(items), AT_ONCE)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's, on odd metadata; what matters here is whether the pixels come
        with ThreadPoolExecutor(min(8, (os.cpu_count() or 1) + 1), "images") as pool:
            done = pool.map(lambda piece: [work(item) for item in piece], pieces)
            return [one for piece in done for one in piece]


def _reason(error: Exception) -> str:
    """In one line, without the file's name, which the caller knows."""
    if isinstance(error, UnidentifiedImageError):
        return "is not an image of a format that is read (" + ", ".join(FORMATS) + ")"
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, ValueError) and text.startswith(("is ", "has ", "claims ")):
        return text
    return f"cannot be read ({text})"
