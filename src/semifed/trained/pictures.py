"""Samples to predict, read as they were for training: a folder of images, one file, an npz, or a CSV of numbers."""

import csv
import dataclasses
import math
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from semifed.data import pictures
from semifed.data.file_settings import FileSettings
from semifed.errors import DataError
from semifed.nets.net import in_words
from semifed.trained.model import Taken

AT_ONCE = 500


class Pictures(NamedTuple):
    """Some samples with the names they go by: a path inside the folder, or a number in the file."""

    names: list[str]
    images: Tensor  # uint8 [N, channels, height, width], or float32 [N, columns]


def read(path: Path, taken: Taken, resize: bool = False, skip_corrupt: bool = False) -> Iterator[Pictures]:
    """The samples at a path, in the order of their names; other sizes are refused unless `resize`, or training did."""
    if not path.exists():
        raise DataError(f"{path}: there is no such file or folder")
    if path.suffix in (".npz", ".csv"):
        whole = _read_npz(path, taken) if path.suffix == ".npz" else _read_csv(path, taken)
        for start in range(0, len(whole), AT_ONCE):
            some = whole[start : start + AT_ONCE]
            yield Pictures([str(start + place) for place in range(len(some))], some)
        return
    if taken.vectors:
        raise DataError(f"{path}: the model takes {in_words(taken.shape)}; give an .npz or a .csv, not images")
    files = _files(path)
    if not files:
        raise DataError(f"{path}: holds no images; looked for {', '.join(pictures.ENDINGS)}, also in folders inside")
    settings = dataclasses.replace(taken.files, size=taken.files.size or (taken.shape[1] if resize else None))
    for start in range(0, len(files), AT_ONCE):
        if (some_files := _read_files(path, files[start : start + AT_ONCE], taken, settings, skip_corrupt)).names:
            yield some_files


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    found = (file for file in path.rglob("*") if pictures.is_image(file) and file.is_file())
    return sorted(found, key=lambda file: file.relative_to(path).as_posix())


def _read_files(root: Path, files: Sequence[Path], taken: Taken, settings: FileSettings, skip: bool) -> Pictures:
    channels, height, width = taken.shape
    images, broken = pictures.read(files, settings, (channels, height, width))
    for place, reason in broken.items():
        if reason.endswith("set files.size"):
            raise DataError(
                f"{files[place]}: {reason.split(',')[0]}, but the model was trained on images of {width}x{height}; "
                "say --resize to have them resized"
            )
        if not skip:
            raise DataError(f"{files[place]}: {reason}; remove it or say --skip-corrupt")
        warnings.warn(f"{files[place]}: {reason}; it is left out", stacklevel=2)
    good = [place for place in range(len(files)) if place not in broken]
    names = [files[place].relative_to(root).as_posix() if root.is_dir() else files[place].name for place in good]
    return Pictures(names, images[good])


def _read_npz(path: Path, taken: Taken) -> Tensor:
    """The array `images` (or `x`, or the only one) of an npz; of images [N, H, W], [N, C, H, W] or [N, H, W, C]."""
    try:
        with np.load(path, allow_pickle=False) as file:
            known = [name for name in ("images", "x", "X", "features") if name in file.files]
            if not known and len(file.files) != 1:
                raise DataError(f"{path}: has the arrays {', '.join(file.files)}; name the one to predict `images`")
            name = known[0] if known else file.files[0]
            array = file[name]
    except (OSError, ValueError, IndexError) as error:
        raise DataError(f"{path}: is not a readable npz ({error})") from None
    kind, shape = (np.float32 if taken.vectors else np.uint8), taken.shape
    if taken.vectors and np.issubdtype(array.dtype, np.number):
        array = array.astype(np.float32)
    elif len(shape) == 3 and array.shape[1:] == shape[1:] and shape[0] == 1:
        array = array[:, None]
    elif len(shape) == 3 and array.shape[1:] == (*shape[1:], shape[0]):
        array = array.transpose(0, 3, 1, 2)
    if array.dtype != kind or array.shape[1:] != shape:
        raise DataError(
            f"{path}: {name} is {array.dtype} of shape {'x'.join(map(str, array.shape))}, but the model takes "
            f"{kind.__name__} {in_words(shape)}"
        )
    return torch.from_numpy(np.ascontiguousarray(array))


def _read_csv(path: Path, taken: Taken) -> Tensor:
    """The columns of numbers; a label column is passed over."""
    if not taken.vectors:
        raise DataError(f"{path}: the model takes {in_words(taken.shape)}; give a folder of images or an .npz")
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            header, *rows = list(csv.reader(file))
        used = [place for place, name in enumerate(header) if name.strip() != taken.files.label]
        values = [[float(row[place]) for place in used] for row in rows if row]
    except (OSError, ValueError, IndexError) as error:
        raise DataError(f"{path}: is not a table of numbers ({error})") from None
    if len(used) != taken.shape[0]:
        raise DataError(f"{path}: has {len(used)} columns of numbers, but the model takes {in_words(taken.shape)}")
    if not all(math.isfinite(value) for row in values for value in row):
        raise DataError(f"{path}: holds a number that is not finite; fill it in")
    return torch.tensor(values, dtype=torch.float32).reshape(-1, len(used))
