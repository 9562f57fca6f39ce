"""Parquet images, decoded once: a hundred thousand small JPEGs take a quarter of a minute, their pixels a moment.

The pixels are kept beside the parquet file, or below ~/.cache/semifed if that place is read-only. They are used only
while the file they came from has the same size and time, and only if they are whole.
"""

import contextlib
import hashlib
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from semifed.data.download import cache_folder, writable
from semifed.data.readers import Samples, missing, read_parquet, refused
from semifed.errors import DataError
from semifed.writing import replacing

VERSION = 1  # of what is kept; raised when the same file would decode to something else


def read_decoded(path: Path, count: int, skip_corrupt: bool = False) -> Samples:
    """The samples of a parquet file, from the kept pixels if there are any."""
    try:
        status = path.stat()
    except OSError as error:
        raise missing(path) from error
    stamp = f"{VERSION} {path.name} {status.st_size} {status.st_mtime_ns} {count}"
    for place in _places(path):
        if (kept := recall(place, stamp)) is not None:
            return kept
    samples, corrupt = read_parquet(path, count)
    if corrupt:
        problem = f"has {len(corrupt)} corrupt images of {count}, the first in row {corrupt[0]}"
        if not skip_corrupt:
            raise refused(path, problem)
        warnings.warn(f"{path} {problem}; they are left out", stacklevel=2)
    else:
        _keep(path, stamp, samples)
    return samples


def _places(path: Path) -> Iterator[Path]:
    name = f"{path.name}.decoded.safetensors"
    yield path.with_name(name)
    with contextlib.suppress(DataError):  # no home folder, no second place
        folder = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:16]
        yield cache_folder() / "decoded" / folder / name


def recall(place: Path, stamp: str) -> Samples | None:
    """What was kept under this name, if it is whole and of this stamp."""
    try:
        with safe_open(place, framework="pt") as file:
            told = file.metadata() or {}
            if told.get("stamp") != stamp:
                return None
            samples = Samples(file.get_tensor("images"), file.get_tensor("labels"))
    except (OSError, SafetensorError):
        return None
    return samples if told.get("sum") == _sum(*samples) else None


def _keep(path: Path, stamp: str, samples: Samples) -> None:
    """In the first place that takes it; if none does, the file is decoded again the next time."""
    for place in _places(path):
        if writable(place.parent):
            keep(place, stamp, samples)
            return


def keep(place: Path, stamp: str, samples: Samples) -> None:
    """Write samples for another time; without room for them nothing is lost."""
    with contextlib.suppress(OSError, SafetensorError):
        place.parent.mkdir(parents=True, exist_ok=True)
        with replacing(place) as part:
            save_file(samples._asdict(), part, {"stamp": stamp, "sum": _sum(*samples)})


def _sum(images: Tensor, labels: Tensor) -> str:
    return f"{zlib.crc32(images.numpy().data):08x}{zlib.crc32(labels.numpy().data):08x}"
