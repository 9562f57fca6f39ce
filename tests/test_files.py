"""Where the files of each data set are looked for: every accepted layout, and what is said when one is missing."""

import dataclasses
import gzip
import hashlib
import io
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import scipy.io
import torch
from numpy.typing import NDArray
from PIL import Image

from semifed.data import files
from semifed.data.download import RemoteFile
from semifed.data.sources import SOURCES, load
from semifed.errors import DataError

NOWHERE = "http://127.0.0.1:9/"  # nobody listens, so a download fails at once


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.delenv("SEMIFED_DATA", raising=False)


def noise(*shape: int) -> NDArray[np.uint8]:
    return np.random.default_rng(7).integers(0, 256, shape, dtype=np.uint8)


def png(array: NDArray[np.uint8]) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(array).save(stream, "PNG")
    return stream.getvalue()


IMAGES = [png(array) for array in noise(4, 32, 32, 3)]


def idx(array: NDArray[np.uint8]) -> bytes:
    return bytes((0, 0, 8, array.ndim)) + b"".join(n.to_bytes(4, "big") for n in array.shape) + array.tobytes()


def parquet(path: Path, images: Sequence[bytes | None], labels: list[int]) -> None:
    cells = [{"bytes": image, "path": "x"} for image in images]
    pyarrow.parquet.write_table(pyarrow.table({"img": cells, "label": labels}), path)


def put_idx(folder: Path, packed: Callable[[str], bool], sizes: tuple[int, int] = (4, 2)) -> files.IdxFiles:
    """Tiny files of an MNIST-like set in `folder`, and the description that expects them."""
    folder.mkdir(parents=True, exist_ok=True)
    remotes = []
    for part, size in zip(("train", "t10k"), sizes, strict=True):
        for ending, array in (("images-idx3", noise(size, 28, 28)), ("labels-idx1", noise(size) % 10)):
            name, content = f"{part}-{ending}-ubyte", idx(array)
            place = folder / (f"{name}.gz" if packed(name) else name)
            place.write_bytes(gzip.compress(content) if packed(name) else content)
            md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
            remotes.append(RemoteFile(f"MNIST/raw/{name}.gz", (f"{NOWHERE}{name}.gz",), "", md5))
    return files.IdxFiles(tuple(remotes), sizes)


def use(monkeypatch: pytest.MonkeyPatch, name: str, described: files.Files) -> None:
    monkeypatch.setitem(SOURCES, name, dataclasses.replace(SOURCES[name], files=described))


@pytest.mark.parametrize("folder", ["MNIST/raw", "MNIST"])
@pytest.mark.parametrize("packed", [lambda _: True, lambda _: False, lambda name: name.startswith("train")])
def test_idx_files_are_found_in_either_folder_packed_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, packed: Callable[[str], bool]
) -> None:
    use(monkeypatch, "mnist", put_idx(tmp_path / folder, packed))
    data = load("mnist", tmp_path)
    assert (data.train, len(data.labels)) == (4, 6)
    assert torch.equal(data.images[4:, 0], torch.from_numpy(noise(2, 28, 28)))
    monkeypatch.setenv("SEMIFED_DATA", str(tmp_path))
    assert torch.equal(load("mnist").images, data.images)


def test_a_missing_idx_file_is_named_with_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, "mnist", put_idx(tmp_path / "MNIST", lambda _: True))
    (tmp_path / "MNIST" / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(DataError) as caught:
        load("mnist", tmp_path)
    assert str(tmp_path / "MNIST" / "raw" / "t10k-labels-idx1-ubyte.gz") in str(caught.value)
    assert "train-images" not in str(caught.value)


def test_a_changed_idx_file_is_never_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, "mnist", put_idx(tmp_path / "MNIST", lambda _: False))
    place = tmp_path / "MNIST" / "train-images-idx3-ubyte"
    place.write_bytes(place.read_bytes()[:-1] + b"\0")
    with pytest.raises(DataError, match="train-images-idx3-ubyte has md5"):
        load("mnist", tmp_path)


def cifar() -> files.CifarFiles:
    remote = RemoteFile("CIFAR10/cifar-10-binary.tar.gz", (f"{NOWHERE}cifar-10-binary.tar.gz",), "0" * 32)
    return files.CifarFiles(remote, {"data_batch_1.bin": "", "test_batch.bin": ""}, 4)


def batch(seed: int) -> bytes:
    table = noise(4, 3073) ^ np.uint8(seed)
    table[:, 0] = (3, 3, 8, 8)
    return table.tobytes()


@pytest.mark.parametrize("above", ["", "CIFAR10"])
@pytest.mark.parametrize("packed", [False, True])
def test_cifar_is_found_as_folder_and_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, above: str, packed: bool
) -> None:
    use(monkeypatch, "cifar10", cifar())
    folder = tmp_path / above / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    members = {f"{folder.name}/{name}": batch(seed) for seed, name in enumerate(cifar().batches)}
    if packed:
        folder.rmdir()
        with tarfile.open(tmp_path / above / "cifar-10-binary.tar.gz", "w:gz") as archive:
            for name, content in members.items():
                member = tarfile.TarInfo(name)
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    else:
        for name, content in members.items():
            (folder.parent / name).write_bytes(content)
    data = load("cifar10", tmp_path)
    assert (data.train, data.images.shape) == (4, (8, 3, 32, 32))
    assert data.labels.tolist() == [3, 3, 8, 8] * 2


@pytest.mark.parametrize("pattern", ["{}.parquet", "{}-00000-of-00001.parquet"])
def test_cifar_is_read_from_parquet_and_both_parts_are_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pattern: str
) -> None:
    use(monkeypatch, "cifar10", cifar())
    with pytest.raises(DataError, match=r"cifar-10-binary\.tar\.gz is missing and was not downloaded"):
        load("cifar10", tmp_path)
    (tmp_path / "CIFAR10").mkdir(exist_ok=True)
    parquet(tmp_path / "CIFAR10" / pattern.format("train"), IMAGES, [0, 1, 2, 3])
    with pytest.raises(DataError, match=r"test\.parquet is missing"):
        load("cifar10", tmp_path)
    parquet(tmp_path / "CIFAR10" / pattern.format("test"), IMAGES, [4, 5, 6, 7])
    assert load("cifar10", tmp_path).labels.tolist() == list(range(8))
    parquet(tmp_path / "CIFAR10" / pattern.format("train"), [None, *IMAGES[1:]], [0, 1, 2, 3])
    with pytest.warns(UserWarning, match="1 corrupt images"):
        data = load("cifar10", tmp_path, skip_corrupt=True)
    assert (data.train, data.labels.tolist()) == (3, [1, 2, 3, 4, 5, 6, 7])


def svhn(*sums: str) -> files.SvhnFiles:
    names = ("train_32x32.mat", "test_32x32.mat")
    first, second = (RemoteFile(f"SVHN/{n}", (NOWHERE + n,), md5) for n, md5 in zip(names, sums, strict=True))
    return files.SvhnFiles((first, second), (4, 4))


@pytest.mark.parametrize("above", ["", "SVHN"])
def test_svhn_is_read_from_the_official_files_else_from_parquet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, above: str
) -> None:
    (tmp_path / "SVHN").mkdir()
    use(monkeypatch, "svhn", svhn("", ""))
    with pytest.raises(DataError, match=r"train_32x32\.mat is missing and was not downloaded"):
        load("svhn", tmp_path)
    for part in ("train", "test"):
        parquet(tmp_path / "SVHN" / f"{part}.parquet", IMAGES, [0, 1, 2, 3])
    assert load("svhn", tmp_path).labels.tolist() == [0, 1, 2, 3] * 2
    for part in ("train", "test"):
        digits = np.array([[10], [7], [7], [1]], np.uint8)
        scipy.io.savemat(tmp_path / above / f"{part}_32x32.mat", {"X": noise(32, 32, 3, 4), "y": digits})
    data = load("svhn", tmp_path)
    assert (data.train, data.labels.tolist()) == (4, [0, 7, 7, 1] * 2)
    use(monkeypatch, "svhn", svhn("", "0" * 32))
    with pytest.raises(DataError, match=r"test_32x32\.mat has md5"):
        load("svhn", tmp_path)
