"""The data sets, as plain tensors of bytes: what there is, and what a Dataset must be to be trained on."""

import difflib
import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from semifed import keys
from semifed.data import files
from semifed.errors import DataError, SettingError

DIGITS = tuple("0123456789")
CLOTHES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
THINGS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CHUNK = 4096  # images whose fingerprints are taken at once, to bound the memory


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images as plain uint8, or vectors as float32, the training set first and then the test set.

    A training sample whose label nobody knows has the label -1: it can be trained on without a label and nothing else.
    """

    name: str
    images: Tensor  # uint8 [N, channels, height, width], or float32 [N, columns]
    labels: Tensor  # int64 [N]
    train: int  # the first `train` samples are the official training set
    classes: tuple[str, ...]
    mean: tuple[float, ...]  # per channel, of pixels in 0..1, or per column; used to normalise
    std: tuple[float, ...]
    flips: bool  # whether a mirrored image keeps its class
    names: tuple[str, ...] = ()  # of the files, where there is one for each sample
    notes: tuple[str, ...] = ()  # what a user should know of how it was read

    def __post_init__(self) -> None:
        _check_images(self)
        _check_classes(self)
        _check_labels(self)

    @property
    def vectors(self) -> bool:
        """Whether samples are rows of numbers and not images."""
        return self.images.dim() == 2


@dataclass(frozen=True)
class Source:
    """One entry of the list of data sets."""

    description: str
    files: files.Files
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    flips: bool


SOURCES: dict[str, Source] = {
    "mnist5k": Source(
        "5,000 MNIST digits, 28x28 grey, 4,000 to train and 1,000 to test; comes with the package",
        files.MNIST5K, DIGITS, (0.1307,), (0.3081,), flips=False,
    ),
    "mnist": Source(
        "handwritten digits, 28x28 grey, 60,000 / 10,000; idx files",
        files.MNIST, DIGITS, (0.1307,), (0.3081,), flips=False,
    ),
    "fashion-mnist": Source(
        "clothes, 28x28 grey, 60,000 / 10,000; idx files",
        files.FASHION_MNIST, CLOTHES, (0.2860,), (0.3530,), flips=True,
    ),
    "cifar10": Source(
        "animals and vehicles, 32x32 colour, 50,000 / 10,000; binary archive or parquet",
        files.CIFAR10, THINGS, (0.5,) * 3, (0.5,) * 3, flips=True,
    ),
    "svhn": Source(
        "house numbers, 32x32 colour, 73,257 / 26,032; MATLAB files or parquet; for non-commercial use",
        files.SVHN, DIGITS, (0.5,) * 3, (0.5,) * 3, flips=False,
    ),
    "synthetic": Source(
        "four patterns under noise, 12x12 grey, 400 / 100; made on the spot, for tests",
        files.SyntheticFiles(), ("stripes", "bars", "chequers", "square"), (0.52,), (0.27,), flips=True,
    ),
}  # fmt: skip


def load(name: str, data_dir: Path | None = None, *, skip_corrupt: bool = False) -> Dataset:
    """The named data set; its files are looked for in `data_dir`, else SEMIFED_DATA, else ~/.cache/semifed.

    A corrupt image is an error, or with `skip_corrupt` left out with a warning that counts them.
    """
    if name not in SOURCES:
        near = difflib.get_close_matches(name, SOURCES, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"choose one of {', '.join(SOURCES)}"
        raise SettingError(f"there is no data set {name!r}: {hint}")
    source = SOURCES[name]
    images, labels, train = source.files.read(data_dir, skip_corrupt)
    return Dataset(name, images, labels, train, source.classes, source.mean, source.std, source.flips)


def fingerprints(images: Tensor) -> Tensor:
    """A 64-bit number for each image or vector, the same for the same content."""
    flat = images.reshape(len(images), -1).contiguous().view(torch.uint8)
    flat = torch.nn.functional.pad(flat, (0, -flat.shape[1] % 8))
    prints = torch.zeros(len(flat), dtype=torch.int64)
    for start in range(0, len(flat), CHUNK):
        words = flat[start : start + CHUNK].contiguous().view(torch.int64)
        prints[start : start + CHUNK] = keys.fold(words, torch.arange(words.shape[1])).sum(1)
    return prints


def overlap(dataset: Dataset, first: Tensor, second: Tensor) -> Tensor:
    """Pairs of samples with the very same image: each of `first` that is also in `second`, with one partner there."""
    if not len(first) or not len(second):
        return torch.zeros(0, 2, dtype=torch.int64)
    wanted, prints = (fingerprints(dataset.images[indices]) for indices in (first, second))
    prints, order = prints.sort(stable=True)
    place = torch.searchsorted(prints, wanted).clamp(max=len(prints) - 1)
    found = (prints[place] == wanted).nonzero()[:, 0]
    pairs = torch.stack([first[found], second[order[place[found]]]], 1)
    # A fingerprint could in principle be shared by different images; the pixels decide.
    same = (dataset.images[pairs[:, 0]] == dataset.images[pairs[:, 1]]).flatten(1).all(1)
    return pairs[same]


def _check_images(dataset: Dataset) -> None:
    images, name = dataset.images, dataset.name
    if isinstance(images, Tensor) and images.dim() == 2:
        _check_vectors(dataset)
        return
    if not isinstance(images, Tensor) or images.dtype != torch.uint8:
        kind = images.dtype if isinstance(images, Tensor) else type(images).__name__
        raise DataError(f"{name}: images are {kind}, wanted a torch.uint8 tensor with pixels 0 to 255")
    shape, channels = tuple(images.shape), len(dataset.mean)
    if len(shape) == 3:
        raise DataError(f"{name}: images have shape {shape}, wanted [N, channels, height, width]: try .unsqueeze(1)")
    if len(shape) != 4 or 0 in shape:
        raise DataError(f"{name}: images have shape {shape}, wanted [N, channels, height, width] without a zero")
    if shape[1] != channels and shape[3] == channels:
        raise DataError(
            f"{name}: images have shape {shape}, wanted [N, channels, height, width] with {channels} channels: "
            "try .permute(0, 3, 1, 2)"
        )
    if shape[1] != channels or len(dataset.std) != channels:
        raise DataError(
            f"{name}: images have shape {shape}, so {shape[1]} channels, but there are "
            f"{channels} values of mean and {len(dataset.std)} of std: give one for each channel"
        )
    _check_scale(dataset)


def _check_vectors(dataset: Dataset) -> None:
    vectors, name = dataset.images, dataset.name
    shape, columns = tuple(vectors.shape), len(dataset.mean)
    if vectors.dtype != torch.float32 or 0 in shape:
        raise DataError(f"{name}: vectors are {vectors.dtype} of shape {shape}, wanted torch.float32 [N, columns]")
    if shape[1] != columns or len(dataset.std) != columns:
        raise DataError(
            f"{name}: vectors have {shape[1]} columns, but there are {columns} values of mean and "
            f"{len(dataset.std)} of std: give one for each column"
        )
    if not bool(vectors.isfinite().all()):
        row, column = (~vectors.isfinite()).nonzero()[0].tolist()
        raise DataError(f"{name}: sample {row} has no finite number in column {column}: fill it in or leave it out")
    _check_scale(dataset)


def _check_scale(dataset: Dataset) -> None:
    if not all(math.isfinite(value) for value in dataset.mean + dataset.std) or min(dataset.std) <= 0:
        raise DataError(f"{dataset.name}: mean {dataset.mean} and std {dataset.std} must be finite, and std above 0")


def _check_classes(dataset: Dataset) -> None:
    name, classes = dataset.name, dataset.classes
    if len(classes) < 2:
        raise DataError(f"{name}: a task with {len(classes)} class has nothing to tell apart: name at least 2 classes")
    if len(set(classes)) != len(classes):
        twice = next(one for one in classes if classes.count(one) > 1)
        raise DataError(f"{name}: the class {twice!r} is named twice: give each class a name of its own")
    if not 1 <= dataset.train <= len(dataset.images):
        raise DataError(f"{name}: train is {dataset.train}, wanted 1 to {len(dataset.images)}, the number of images")
    if dataset.names and len(dataset.names) != len(dataset.images):
        raise DataError(f"{name}: {len(dataset.names)} names for {len(dataset.images)} samples: give each one, or none")


def _check_labels(dataset: Dataset) -> None:
    labels, name, count = dataset.labels, dataset.name, len(dataset.classes)
    if not isinstance(labels, Tensor) or labels.dtype != torch.int64:
        kind = labels.dtype if isinstance(labels, Tensor) else type(labels).__name__
        raise DataError(f"{name}: labels are {kind}, wanted a torch.int64 tensor with classes 0 to {count - 1}")
    if tuple(labels.shape) != (len(dataset.images),):
        wanted = (len(dataset.images),)
        raise DataError(f"{name}: labels have shape {tuple(labels.shape)}, wanted {wanted}, one for each image")
    wrong = ((labels < -1) | (labels >= count)).nonzero()
    if len(wrong):
        index = int(wrong[0])
        raise DataError(
            f"{name}: label {int(labels[index])} of sample {index} is not in 0 to {count - 1}, nor -1 for no label"
        )
    blank = (labels[dataset.train :] < 0).nonzero()
    if len(blank):
        raise DataError(f"{name}: test sample {dataset.train + int(blank[0])} has no label: a test needs one")
