"""Images to predict, read as they were for training: a folder, one file, or an npz, a handful at a time."""

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor

from semifed.errors import DataError
from semifed.nets.net import Shape
from semifed.trained.model import Taken, words

SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm"}
MODES = {1: "L", 3: "RGB", 4: "RGBA"}
AT_ONCE = 500


class Pictures(NamedTuple):
    """Some images with the names they go by: a path inside the folder, or a number in the npz."""

    names: list[str]
    images: Tensor  # uint8 [N, channels, height, width]


def read(path: Path, taken: Taken, resize: bool = False, skip_corrupt: bool = False) -> Iterator[Pictures]:
    """The images at a path, in the order of their names; other sizes are refused unless `resize`, or training did."""
    if not path.exists():
        raise DataError(f"{path}: there is no such file or folder")
    if path.suffix == ".npz":
        yield from _read_npz(path, taken.shape)
        return
    files = _files(path)
    if not files:
        raise DataError(f"{path}: holds no images; looked for {', '.join(sorted(SUFFIXES))}, also in folders inside")
    fit = resize or taken.resize is not None
    for start in range(0, len(files), AT_ONCE):
        if (some := _read_files(path, files[start : start + AT_ONCE], taken.shape, fit, skip_corrupt)).names:
            yield some


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    found = (file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES and file.is_file())
    return sorted(found, key=lambda file: file.relative_to(path).as_posix())


def _read_files(root: Path, files: Sequence[Path], shape: Shape, fit: bool, skip: bool) -> Pictures:
    names, images = [], []
    for file in files:
        try:
            pixels = _open(file, shape, fit)
        except DataError:
            raise
        except Exception as error:  # damaged bytes make Pillow raise almost anything
            problem = f"{file}: is not a readable image ({' '.join(str(error).split())})"
            if not skip:
                raise DataError(f"{problem}; remove it or say --skip-corrupt") from None
            warnings.warn(f"{problem}; it is left out", stacklevel=2)
            continue
        names.append(file.relative_to(root).as_posix() if root.is_dir() else file.name)
        images.append(torch.from_numpy(pixels))
    return Pictures(names, torch.stack(images) if images else torch.zeros(0, *shape, dtype=torch.uint8))


def _open(file: Path, shape: Shape, fit: bool) -> NDArray[np.uint8]:
    """One image as [channels, height, width]."""
    channels, height, width = shape
    if channels not in MODES:
        raise DataError(f"{file}: the model takes {channels} channels, which no image file has; give an npz")
    with Image.open(file) as image:
        upright = ImageOps.exif_transpose(image)
        if upright.size != (width, height) and not fit:
            raise DataError(
                f"{file}: is {upright.height}x{upright.width}, but the model was trained on images of "
                f"{words(shape[1:])} (height x width); say --resize to have them resized"
            )
        made = upright.convert(MODES[channels])
        if made.size != (width, height):
            made = made.resize((width, height), Image.Resampling.BILINEAR)
        pixels = np.array(made, dtype=np.uint8)
    return pixels[None] if channels == 1 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _read_npz(path: Path, shape: Shape) -> Iterator[Pictures]:
    """The array `images` (or the only one) of an npz: [N, H, W], [N, C, H, W] or [N, H, W, C], as bytes."""
    try:
        with np.load(path, allow_pickle=False) as file:
            name = "images" if "images" in file.files else file.files[0] if len(file.files) == 1 else None
            if name is None:
                raise DataError(f"{path}: has the arrays {', '.join(file.files)}; name the one to predict `images`")
            array = file[name]
    except (OSError, ValueError, IndexError) as error:
        raise DataError(f"{path}: is not a readable npz ({error})") from None
    channels, height, width = shape
    if array.shape[1:] == (height, width) and channels == 1:
        array = array[:, None]
    elif array.shape[1:] == (height, width, channels):
        array = array.transpose(0, 3, 1, 2)
    if array.dtype != np.uint8 or array.shape[1:] != shape:
        raise DataError(
            f"{path}: {name} is {array.dtype} of shape {words(array.shape)}, but the model takes uint8 images of "
            f"{words(shape)} (channels x height x width)"
        )
    for start in range(0, len(array), AT_ONCE):
        some = np.ascontiguousarray(array[start : start + AT_ONCE])
        yield Pictures([str(start + place) for place in range(len(some))], torch.from_numpy(some))
