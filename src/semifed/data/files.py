"""Which files make up each data set, where they may lie in the data folder, and how they are put together."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from semifed import keys
from semifed.data.decoded import read_decoded
from semifed.data.download import RemoteFile, data_folder, fetch
from semifed.data.readers import Samples, check_labels, read_cifar, read_idx, read_mat
from semifed.errors import DataError

EMBEDDED = Path(__file__).with_name("embedded")
PARTS = ("train", "test")


class Content(NamedTuple):
    """All images and labels, the `train` samples of the training set first."""

    images: Tensor
    labels: Tensor
    train: int


class Files(Protocol):
    def read(self, data_dir: Path | None, skip_corrupt: bool, /) -> Content:
        """Everything, from local files if they are there in any layout, else downloaded."""


@dataclass(frozen=True)
class IdxFiles:
    """MNIST and its kin: images and labels of the training set, then of the test set, in torchvision's folders."""

    remote: tuple[RemoteFile, ...]
    counts: tuple[int, int] = (60_000, 10_000)

    def read(self, data_dir: Path | None, _skip_corrupt: bool, /) -> Content:
        folder = data_folder(data_dir)
        parts = []
        for count, images, labels in zip(self.counts, self.remote[::2], self.remote[1::2], strict=True):
            pixels = read_idx(_find_or_fetch(folder, images), (count, 28, 28), images.content_md5)
            place = _find_or_fetch(folder, labels)
            numbers = read_idx(place, (count,), labels.content_md5)
            parts.append(Samples(pixels[:, None], check_labels(place, numbers)))
        return _joined(*parts)


@dataclass(frozen=True)
class CifarFiles:
    """CIFAR-10: the binary archive or the folder in it, else parquet; never the archive of pickles."""

    remote: RemoteFile
    batches: Mapping[str, str]  # the md5 of each; the last is the test set
    count: int = 10_000

    def read(self, data_dir: Path | None, skip_corrupt: bool, /) -> Content:
        folder = data_folder(data_dir)
        train = self.count * (len(self.batches) - 1)
        for place in (folder / "CIFAR10", folder):
            for name in ("cifar-10-batches-bin", "cifar-10-binary.tar.gz"):
                if (place / name).exists():
                    return Content(*read_cifar(place / name, self.batches, self.count), train)
        if _any_parquet(folder / "CIFAR10"):
            return _read_parquets(folder / "CIFAR10", (train, self.count), skip_corrupt)
        return Content(*read_cifar(fetch(self.remote, folder), self.batches, self.count), train)


@dataclass(frozen=True)
class SvhnFiles:
    """SVHN's cropped digits: the two official MATLAB files, else parquet."""

    remote: tuple[RemoteFile, RemoteFile]
    counts: tuple[int, int] = (73_257, 26_032)

    def read(self, data_dir: Path | None, skip_corrupt: bool, /) -> Content:
        folder = data_folder(data_dir)
        official = all(_find(folder, remote) for remote in self.remote)
        if not official and _any_parquet(folder / "SVHN"):
            return _read_parquets(folder / "SVHN", self.counts, skip_corrupt)
        places = [_find_or_fetch(folder, remote) for remote in self.remote]
        triples = zip(places, self.counts, self.remote, strict=True)
        return _joined(*(read_mat(place, count, remote.md5) for place, count, remote in triples))


@dataclass(frozen=True)
class EmbeddedFiles:
    """The digits that come with the package: four fifths of each class for training, the rest for the test."""

    name: str
    count: int
    images_sha256: str
    labels_sha256: str

    def read(self, _data_dir: Path | None, _skip_corrupt: bool, /) -> Content:
        try:
            place = EMBEDDED / f"{self.name}-images-idx3-ubyte.gz"
            images = read_idx(place, (self.count, 28, 28), self.images_sha256)
            place = EMBEDDED / f"{self.name}-labels-idx1-ubyte.gz"
            labels = check_labels(place, read_idx(place, (self.count,), self.labels_sha256))
        except DataError as error:
            raise DataError(f"the embedded data are damaged, install semifed again ({error})") from error
        order = keys.permutation(keys.key(self.name, "order"), self.count)
        # The rank of a sample within its class, in the shuffled order, says which set it belongs to.
        rank = torch.nn.functional.one_hot(labels[order]).cumsum(0).gather(1, labels[order, None])[:, 0] - 1
        first = rank < 4 * labels.bincount()[labels[order]] // 5
        order = torch.cat([order[first], order[~first]])
        return Content(images[order, None], labels[order], int(first.sum()))


@dataclass(frozen=True)
class SyntheticFiles:
    """No files at all: stripes across, stripes down, a chequerboard or a square, at a random place and under noise."""

    counts: tuple[int, int] = (400, 100)
    side: int = 12
    noise: float = 96.0

    def read(self, _data_dir: Path | None, _skip_corrupt: bool, /) -> Content:
        count = sum(self.counts)
        key = torch.tensor(keys.key("synthetic"))
        labels = torch.arange(count) % 4
        down, across = keys.integers(keys.fold(key, torch.arange(count)), 2, 0, 3)[:, :, None, None].unbind(1)
        row = torch.arange(self.side)[:, None] + down
        column = torch.arange(self.side)[None, :] + across
        stripes, bars = row % 4 < 2, column % 4 < 2
        centre = self.side // 2 + 1
        square = ((row - centre).abs() < 3) & ((column - centre).abs() < 3)
        shapes = torch.stack([s.expand(count, self.side, self.side) for s in (stripes, bars, stripes ^ bars, square)])
        bright = shapes[labels, torch.arange(count)] * 128.0 + 32
        noise = keys.uniform(keys.fold(key, -2), count * self.side**2).view_as(bright) * self.noise
        return Content((bright + noise).to(torch.uint8)[:, None], labels, self.counts[0])


def _find(folder: Path, remote: RemoteFile) -> Path | None:
    """A local copy in the file's own folder or the one above, packed or not."""
    path = folder / remote.path
    names = dict.fromkeys((path.name.removesuffix(".gz"), path.name))
    places = (place / name for place in (path.parent, path.parent.parent) for name in names)
    return next((place for place in places if place.is_file()), None)


def _find_or_fetch(folder: Path, remote: RemoteFile) -> Path:
    return _find(folder, remote) or fetch(remote, folder)


def _parquet(folder: Path, part: str) -> Path:
    """The plain name, unless only the one that Hugging Face gives is there."""
    shard = folder / f"{part}-00000-of-00001.parquet"
    return shard if shard.is_file() else folder / f"{part}.parquet"


def _any_parquet(folder: Path) -> bool:
    return any(_parquet(folder, part).is_file() for part in PARTS)


def _read_parquets(folder: Path, counts: tuple[int, int], skip_corrupt: bool) -> Content:
    pairs = zip(PARTS, counts, strict=True)
    return _joined(*(read_decoded(_parquet(folder, part), count, skip_corrupt) for part, count in pairs))


def _joined(train: Samples, test: Samples) -> Content:
    images, labels = (torch.cat(both) for both in zip(train, test, strict=True))
    return Content(images, labels, len(train.labels))


def _idx(folder: str, addresses: tuple[str, ...], sums: Mapping[str, tuple[str, str]]) -> IdxFiles:
    return IdxFiles(
        tuple(
            RemoteFile(f"{folder}/raw/{name}.gz", tuple(f"{start}{name}.gz" for start in addresses), packed, content)
            for name, (packed, content) in sums.items()
        )
    )


MNIST = _idx(
    "MNIST",
    ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
    {
        "train-images-idx3-ubyte": ("f68b3c2dcbeaaa9fbdd348bbdeb94873", "6bbc9ace898e44ae57da46a324031adb"),
        "train-labels-idx1-ubyte": ("d53e105ee54ea40749a09fcbcd1e9432", "a25bea736e30d166cdddb491f175f624"),
        "t10k-images-idx3-ubyte": ("9fb629c4189551a2d022fa330f9573f3", "2646ac647ad5339dbf082846283269ea"),
        "t10k-labels-idx1-ubyte": ("ec29112dd5afa0611ce80d1b7f02629c", "27ae3e4e09519cfbb04c329615203637"),
    },
)
FASHION_MNIST = _idx(
    "FashionMNIST",
    (
        "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    ),
    {
        "train-images-idx3-ubyte": ("8d4fb7e6c68d591d4c3dfef9ec88bf0d", "f4a8712d7a061bf5bd6d2ca38dc4d50a"),
        "train-labels-idx1-ubyte": ("25c81989df183df01b3e8a0aad5dffbe", "9018921c3c673c538a1fc5bad174d6f9"),
        "t10k-images-idx3-ubyte": ("bef4ecab320f06d8554ea6380940ec79", "8181f5470baa50b63fa0f6fddb340f0a"),
        "t10k-labels-idx1-ubyte": ("bb300cfdad3c16e7a12a480ee83cd310", "15d484375f8d13e6eb1aabb0c3f46965"),
    },
)
CIFAR10 = CifarFiles(
    RemoteFile(
        "CIFAR10/cifar-10-binary.tar.gz",
        ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
        "c32a1d4ab5d03f1284b67883e8d87530",
    ),
    MappingProxyType(
        {
            "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
            "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
            "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
            "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
            "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
            "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
        }
    ),
)
SVHN = SvhnFiles(
    (
        RemoteFile(
            "SVHN/train_32x32.mat",
            (
                "https://ufldl.stanford.edu/housenumbers/train_32x32.mat",
                "http://ufldl.stanford.edu/housenumbers/train_32x32.mat",
            ),
            "e26dedcc434d2e4c54c9b2d4a06d8373",
        ),
        RemoteFile(
            "SVHN/test_32x32.mat",
            (
                "https://ufldl.stanford.edu/housenumbers/test_32x32.mat",
                "http://ufldl.stanford.edu/housenumbers/test_32x32.mat",
            ),
            "eb5a983be6a315427106f1b164d9cef3",
        ),
    )
)
MNIST5K = EmbeddedFiles(
    "mnist5k",
    5_000,
    "a4a9358b9ba319305e7cd69b2c7410e463401e152d7e9e60189b94a3f159d012",
    "704256e87519240fd1d7ecdf681fe209864691e252c6642aeadc21f3c4d44b41",
)
