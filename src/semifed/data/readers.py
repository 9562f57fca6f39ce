"""The file formats: idx, the CIFAR-10 binary archive, MATLAB and parquet, each checked before it is believed.

Nothing here unpickles, writes what an archive names, or unpacks more than the bytes that are expected.
"""

import gzip
import hashlib
import importlib
import io
import math
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from semifed.errors import DataError

REMEDY = "replace it by an intact copy, or remove it to have the official file downloaded"
SIDE = 32  # CIFAR-10 and SVHN
ROW_LIMIT = 2**14  # bytes of one stored 32x32 image; a PNG of pure noise needs a quarter


class Samples(NamedTuple):
    """Images uint8 [N, channels, height, width] and labels int64 [N]."""

    images: Tensor
    labels: Tensor


def refused(path: Path, problem: str) -> DataError:
    """The error for a file that will not be used."""
    return DataError(f"{path} {' '.join(problem.split())}: {REMEDY}")


def missing(path: Path) -> DataError:
    """The error for a file without which its neighbours are no use."""
    return DataError(f"{path} is missing: add it, or remove the others of its set to have the official file downloaded")


def read_idx(path: Path, shape: tuple[int, ...], checksum: str = "") -> Tensor:
    """The bytes of an idx file, packed or not, whose shape is known beforehand."""
    header = bytes((0, 0, 8, len(shape))) + b"".join(size.to_bytes(4, "big") for size in shape)
    size = len(header) + math.prod(shape)
    content = _content(path, size)
    if not content.startswith(header):
        raise refused(path, f"is not an idx file of shape {shape}")
    _verify(path, content, size, checksum)
    return torch.from_numpy(np.frombuffer(content, np.uint8, offset=len(header)).copy()).view(shape)


def read_cifar(path: Path, batches: Mapping[str, str], count: int) -> Samples:
    """The named batches in order, `count` images each, from the binary archive or the folder it unpacks to."""
    size = count * (1 + 3 * SIDE * SIDE)
    images, labels = [], []
    members = _folder(path, batches, size) if path.is_dir() else _archive(path, batches, size)
    for name, content in members:
        _verify(path / name, content, size, batches[name])
        table = torch.from_numpy(np.frombuffer(content, np.uint8).reshape(count, -1).copy())
        images.append(table[:, 1:].reshape(count, 3, SIDE, SIDE))
        labels.append(check_labels(path / name, table[:, 0]))
    return Samples(torch.cat(images), torch.cat(labels))


def read_mat(path: Path, count: int, checksum: str = "") -> Samples:
    """SVHN's official file of cropped digits, where the label 10 means the digit 0."""
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "md5").hexdigest()
    except OSError as error:
        raise refused(path, f"cannot be read ({error})") from error
    if checksum and digest != checksum:
        raise refused(path, f"has md5 {digest}, wanted {checksum}")
    matlab = importlib.import_module("scipy.io")  # here, because it costs 0.4 s and only this file needs it
    wanted = {"X": (SIDE, SIDE, 3, count), "y": (count, 1)}
    try:
        shapes = {name: shape for name, shape, _ in matlab.whosmat(path)}
        if any(shapes.get(name) != shape for name, shape in wanted.items()):
            raise ValueError(f"it has {shapes}, wanted {wanted}")
        content = matlab.loadmat(path, variable_names=tuple(wanted))
        pixels, digits = content["X"], content["y"].ravel()
        if pixels.dtype != np.uint8 or not np.isin(digits, range(1, 11)).all():
            raise ValueError("the pixels are not bytes or the labels not 1 to 10")
    except Exception as error:  # damaged bytes make scipy raise almost anything
        raise refused(path, f"is not SVHN's file ({error})") from error
    images = torch.from_numpy(np.ascontiguousarray(pixels.transpose(3, 2, 0, 1)))
    return Samples(images, torch.from_numpy(digits.astype(np.int64) % 10))


def read_parquet(path: Path, count: int) -> tuple[Samples, list[int]]:
    """`count` encoded images and labels in the layout of Hugging Face, and the rows whose image is corrupt.

    The images of corrupt rows are left out; whether that is acceptable is for the caller to say.
    """
    import pyarrow  # noqa: PLC0415  it takes a while, and embedded data do not need it
    from PIL import Image  # noqa: PLC0415

    images: NDArray[np.uint8] = np.zeros((count, SIDE, SIDE, 3), np.uint8)
    labels: list[int | None] = []
    corrupt: list[int] = []
    try:
        for encoded, batch_labels in _rows(path, count):
            for row, content in enumerate(encoded, start=len(labels)):
                try:
                    images[row] = _decode(content)
                except (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError):
                    corrupt.append(row)
            labels += batch_labels
    except (pyarrow.ArrowException, OSError, IndexError, ValueError) as error:  # a column name may be no text
        raise refused(path, f"is not a readable parquet file ({error})") from error
    if len(labels) != count or None in labels:
        raise refused(path, f"has {len(labels) - labels.count(None):,} labels, wanted {count:,}")
    kept = torch.ones(count, dtype=torch.bool)
    kept[corrupt] = False
    tensor = torch.from_numpy(images).permute(0, 3, 1, 2)
    return Samples(tensor[kept].contiguous(), check_labels(path, torch.tensor(labels))[kept]), corrupt


def check_labels(path: Path, labels: Tensor, classes: int = 10) -> Tensor:
    """The labels as int64, once they are known to be in range."""
    wrong = ((labels < 0) | (labels >= classes)).nonzero()
    if len(wrong):
        row = int(wrong[0])
        raise refused(path, f"has the label {int(labels[row])} in row {row}, wanted 0 to {classes - 1}")
    return labels.long()


def _content(path: Path, size: int) -> bytes:
    """At most `size` + 1 bytes of a file, unpacked if it is packed, whatever its name says."""
    try:
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            stream: IO[bytes] | gzip.GzipFile = gzip.GzipFile(fileobj=file) if packed else file
            return stream.read(size + 1)
    except FileNotFoundError as error:
        raise missing(path) from error
    except (OSError, EOFError, zlib.error) as error:
        raise refused(path, f"cannot be read ({error})") from error


def _verify(path: Path, content: bytes, size: int, checksum: str) -> None:
    """Refuse what has another length or checksum; which algorithm it is shows in its length."""
    if len(content) < size:
        raise refused(path, f"is truncated: it holds {len(content):,} of {size:,} bytes")
    if len(content) > size:
        raise refused(path, f"is too long: it holds more than {size:,} bytes")
    algorithm = {0: "", 32: "md5", 64: "sha256"}[len(checksum)]
    if algorithm and (digest := hashlib.new(algorithm, content, usedforsecurity=False).hexdigest()) != checksum:
        raise refused(path, f"has {algorithm} {digest}, wanted {checksum}")


def _folder(path: Path, names: Mapping[str, str], size: int) -> Iterator[tuple[str, bytes]]:
    for name in names:
        yield name, _content(path / name, size)


def _archive(path: Path, names: Mapping[str, str], size: int) -> Iterator[tuple[str, bytes]]:
    """The named members in the order of `names`, read in memory: nothing is ever written where an archive says."""
    limit = len(names) * (size + 1024) + 2**20  # the archive also has a page of text
    content = _content(path, limit)
    if len(content) > limit:
        raise refused(path, f"is too long: it unpacks to more than {limit:,} bytes")
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as archive:
            for member in archive:
                place = PurePosixPath(member.name)
                if place.is_absolute() or ".." in place.parts or not (member.isreg() or member.isdir()):
                    raise refused(path, f"has the unsafe member {member.name!r}")
                if place.name in names and member.isreg() and member.size == size:
                    stream = archive.extractfile(member)
                    found[place.name] = stream.read(size) if stream else b""
    except (tarfile.TarError, OSError, ValueError) as error:
        raise refused(path, f"is not a readable archive ({error})") from error
    for name in names:
        if name not in found:
            raise refused(path, f"has no member {name} of {size:,} bytes")
        yield name, found.pop(name)


def _rows(path: Path, count: int) -> Iterator[tuple[list[bytes | None], list[int | None]]]:
    """Encoded images and labels, some rows at a time."""
    import pyarrow.parquet  # noqa: PLC0415

    with pyarrow.parquet.ParquetFile(path, page_checksum_verification=True) as file:
        names = file.schema_arrow.names
        column = next((name for name in ("img", "image") if name in names), None)
        if column is None or "label" not in names:
            raise refused(path, f"has the columns {names}, wanted img or image, and label")
        image, label = file.schema_arrow.field(column).type, file.schema_arrow.field("label").type
        if not pyarrow.types.is_struct(image) or image.get_field_index("bytes") < 0:
            raise refused(path, f"has no bytes in its column {column}")
        if not pyarrow.types.is_integer(label):
            raise refused(path, f"has labels of type {label}, wanted whole numbers")
        groups = [file.metadata.row_group(index) for index in range(file.num_row_groups)]
        if file.metadata.num_rows != count:
            raise refused(path, f"has {file.metadata.num_rows:,} rows, wanted {count:,}")
        if sum(group.total_byte_size for group in groups) > count * ROW_LIMIT:
            raise refused(path, f"unpacks to more than {count * ROW_LIMIT:,} bytes")
        for batch in file.iter_batches(1000, columns=[f"{column}.bytes", "label"]):
            labels = batch.column("label").cast(pyarrow.int64())
            yield batch.column(column).field("bytes").to_pylist(), labels.to_pylist()


def _decode(content: bytes | None) -> NDArray[np.uint8]:
    from PIL import Image  # noqa: PLC0415

    with Image.open(io.BytesIO(content or b""), formats=("PNG", "JPEG")) as image:
        # Checked before the pixels are unpacked: a small file can claim to be a huge image.
        if image.size != (SIDE, SIDE) or image.mode != "RGB":
            raise ValueError(f"{image.size} {image.mode}")
        return np.asarray(image)
