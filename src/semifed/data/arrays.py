"""npz files: arrays by the names that people give them, never objects."""

import zipfile
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from semifed.data.file_settings import FileSettings
from semifed.data.raw import LARGEST, UNLABELLED, Raw, as_samples, check_numbers, number_names
from semifed.errors import DataError

NAMES = {
    "samples": ("x_train", "train_images", "images", "x", "X", "data", "features"),
    "labels": ("y_train", "train_labels", "labels", "y", "targets"),
    "test": ("x_test", "test_images"),
    "test labels": ("y_test", "test_labels"),
    "unlabelled": ("x_unlabelled", "x_unlabeled", "unlabelled", "unlabeled", "unlabelled_images", "unlabeled_images"),
    "classes": ("classes", "class_names"),
}


def read_npz(path: Path, settings: FileSettings) -> Raw:
    """Training samples and labels, and if they are there a test set, samples without labels, and class names."""
    found = _arrays(path)
    used = {what: next((name for name in names if name in found), None) for what, names in NAMES.items()}
    held = {what: (f"{path.name}: {name}", found[name]) for what, name in used.items() if name}
    if "samples" not in held or "labels" not in held:
        raise DataError(f"{path}: has the arrays {', '.join(found)}; wanted x_train and y_train (or images and labels)")
    if ("test" in held) != ("test labels" in held):
        raise DataError(f"{path}: a test set has samples and labels: x_test and y_test; one of them is missing")
    parts = [as_samples(*held[what], settings) for what in ("samples", "test", "unlabelled") if what in held]
    if len({part.shape[1:] for part in parts}) > 1:
        raise DataError(f"{path}: the arrays have samples of shapes {[tuple(part.shape[1:]) for part in parts]}; "
                        "wanted one shape")  # fmt: skip
    names = [str(name) for name in held["classes"][1]] if "classes" in held else []
    said = [held[what] for what in ("labels", "test labels") if what in held]
    blanks = len(parts[-1]) if "unlabelled" in held else 0
    labels, classes = _numbers(path, said, settings, names)
    sizes = [len(array) for _, array in said]
    for (where, _), size, part in zip(said, sizes, parts, strict=False):
        if size != len(part):
            raise DataError(f"{where} has {size} labels for {len(part)} samples")
    test = torch.zeros(len(labels) + blanks, dtype=torch.bool)
    test[sizes[0] : len(labels)] = True
    unread = set(found) - {name for name in used.values() if name}
    notes = (f"{path.name}: not read: {', '.join(sorted(unread))}",) if unread else ()
    all_labels = torch.cat([labels, torch.full((blanks,), UNLABELLED)])
    return Raw(torch.cat(parts), all_labels, test, classes, notes=notes)


def _numbers(
    path: Path, said: list[tuple[str, NDArray[np.generic]]], settings: FileSettings, names: list[str]
) -> tuple[torch.Tensor, tuple[str, ...]]:
    try:
        both = np.concatenate([array.reshape(len(array), -1) for _, array in said])
    except ValueError as error:
        raise DataError(f"{path}: the labels do not fit together ({error})") from None
    if both.dtype.kind == "U" and both.shape[1] == 1:
        return number_names(str(path), [str(name) or None for name in both[:, 0]], settings)
    return check_numbers(str(path), both, settings, names)


def _arrays(path: Path) -> dict[str, NDArray[np.generic]]:
    """All arrays of a file, once it is clear that they do not unpack to more than is reasonable."""
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(member.file_size for member in archive.infolist())
        if size > LARGEST:
            raise DataError(f"{path}: unpacks to {size:,} bytes, more than {LARGEST:,}")
        with np.load(path, allow_pickle=False) as content:
            return {name: np.asarray(content[name]) for name in content.files}
    except FileNotFoundError:
        raise DataError(f"{path}: there is no such file") from None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, KeyError) as error:
        reason = " ".join(str(error).split())
        raise DataError(f"{path}: is not a readable npz file ({reason}); write it anew with numpy.savez") from None
