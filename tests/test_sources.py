"""The list of data sets, what a Dataset must be, the data without files, and the finder of duplicates."""

import gzip
import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from semifed.data import files, sources
from semifed.data.sources import SOURCES, Dataset, fingerprints, load, overlap
from semifed.errors import DataError, SettingError


def noise(*shape: int) -> NDArray[np.uint8]:
    return np.random.default_rng(7).integers(0, 256, shape, dtype=np.uint8)


def dataset(**changes: Any) -> Dataset:
    plain: dict[str, Any] = {
        "name": "mine",
        "images": torch.zeros(6, 1, 4, 4, dtype=torch.uint8),
        "labels": torch.tensor([0, 1, 2, 0, 1, 2]),
        "train": 4,
        "classes": ("a", "b", "c"),
        "mean": (0.5,),
        "std": (0.5,),
        "flips": True,
    }
    return Dataset(**{**plain, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": torch.tensor([0, 1, 2, 0, 3, 2])}, "label 3 of sample 4 is not in 0 to 2"),
        ({"labels": torch.tensor([0, -7, 2, 0, 1, 2])}, "label -7 of sample 1 is not in 0 to 2"),
        ({"labels": torch.tensor([0, 1, 2, 0, -1, 2])}, "test sample 4 has no label"),
        ({"images": torch.zeros(6, 4)}, "vectors have 4 columns, but there are 1 values of mean"),
        ({"images": torch.full((6, 1), float("nan"))}, "sample 0 has no finite number in column 0"),
        ({"images": torch.zeros(6, 1, dtype=torch.float64)}, "vectors are torch.float64 of shape"),
        ({"names": ("a", "b")}, "2 names for 6 samples"),
        ({"labels": torch.tensor([0, 1, 2, 0, 1, 2.5])}, "labels are torch.float32, wanted a torch.int64"),
        ({"labels": [0, 1, 2, 0, 1, 2]}, "labels are list"),
        ({"labels": torch.tensor([0, 1, 2])}, r"labels have shape \(3,\), wanted \(6,\)"),
        ({"classes": ("a",)}, "1 class has nothing to tell apart"),
        ({"classes": ("a", "b", "a")}, "'a' is named twice"),
        ({"images": torch.zeros(6, 1, 4, 4)}, "images are torch.float32, wanted a torch.uint8"),
        ({"images": np.zeros((6, 1, 4, 4), np.uint8)}, "images are ndarray"),
        ({"images": torch.zeros(6, 4, 4, dtype=torch.uint8)}, r"\(6, 4, 4\).*unsqueeze"),
        ({"images": torch.zeros(6, 4, 4, 1, dtype=torch.uint8)}, r"\(6, 4, 4, 1\).*permute"),
        ({"images": torch.zeros(6, 3, 4, 4, dtype=torch.uint8)}, r"\(6, 3, 4, 4\), so 3 channels.*1 values of mean"),
        ({"images": torch.zeros(0, 1, 4, 4, dtype=torch.uint8)}, "without a zero"),
        ({"std": (0.0,)}, "std above 0"),
        ({"mean": (float("nan"),)}, "finite"),
        ({"std": (0.5, 0.5)}, "2 of std"),
        ({"train": 7}, "train is 7, wanted 1 to 6"),
        ({"train": 0}, "train is 0"),
    ],
)
def test_a_dataset_that_cannot_be_trained_on_says_why(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        dataset(**changes)
    assert str(caught.value).startswith("mine: ")
    assert "\n" not in str(caught.value)


def test_a_thousand_classes_are_fine() -> None:
    many = dataset(
        images=torch.zeros(2000, 1, 4, 4, dtype=torch.uint8),
        labels=torch.arange(2000) % 1000,
        train=1000,
        classes=tuple(map(str, range(1000))),
    )
    assert len(many.classes) == 1000


def test_an_unknown_name_names_the_nearest() -> None:
    with pytest.raises(SettingError, match="did you mean 'fashion-mnist'"):
        load("fashion_mnist")
    with pytest.raises(SettingError, match="choose one of mnist5k, mnist"):
        load("../../etc")


def test_every_source_has_a_line_and_fits_its_classes() -> None:
    assert list(SOURCES) == ["mnist5k", "mnist", "fashion-mnist", "cifar10", "svhn", "synthetic"]
    for source in SOURCES.values():
        assert "\n" not in source.description
        assert len(source.mean) == len(source.std) in (1, 3)
    assert {name for name, source in SOURCES.items() if not source.flips} == {"mnist5k", "mnist", "svhn"}


def test_mnist5k_is_embedded_split_evenly_and_always_the_same() -> None:
    data = load("mnist5k")
    assert data.images.shape == (5000, 1, 28, 28)
    assert data.labels[: data.train].bincount().tolist() == [400] * 10
    assert data.labels[data.train :].bincount().tolist() == [100] * 10
    assert not len(overlap(data, torch.arange(data.train, 5000), torch.arange(data.train)))
    digest = hashlib.sha256(data.images.numpy().tobytes() + data.labels.numpy().tobytes()).hexdigest()
    assert digest[:16] == "30d71644e45a8159"
    pixels = data.images / 255
    assert abs(float(pixels.mean()) - data.mean[0]) < 0.01
    assert abs(float(pixels.std()) - data.std[0]) < 0.01
    assert sum(path.stat().st_size for path in files.EMBEDDED.iterdir()) < 1_000_000


def test_a_damaged_embedded_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "EMBEDDED", tmp_path)
    with pytest.raises(DataError, match=r"install semifed again .*images-idx3-ubyte\.gz is missing"):
        load("mnist5k")
    header = bytes((0, 0, 8, 3, 0, 0, 0x13, 0x88, 0, 0, 0, 28, 0, 0, 0, 28))
    (tmp_path / "mnist5k-images-idx3-ubyte.gz").write_bytes(gzip.compress(header + bytes(5000 * 28 * 28)))
    with pytest.raises(DataError, match=r"install semifed again .*sha256"):
        load("mnist5k")


def test_synthetic_is_small_the_same_each_time_and_can_be_learned() -> None:
    data = load("synthetic")
    digest = hashlib.sha256(data.images.numpy().tobytes() + data.labels.numpy().tobytes()).hexdigest()
    assert digest[:16] == "069c50f6682b7ae4"
    assert data.images.shape == (500, 1, 12, 12)
    # How often neighbours agree, down and across, tells the four patterns apart whatever their place.
    pixels = data.images[:, 0] / 255
    down = (pixels[:, 2:] - pixels[:, :-2]).abs().mean((1, 2))
    across = (pixels[:, :, 2:] - pixels[:, :, :-2]).abs().mean((1, 2))
    features = torch.stack([down, across, pixels.mean((1, 2))], 1)
    centres = torch.stack([features[: data.train][data.labels[: data.train] == c].mean(0) for c in range(4)])
    right = torch.cdist(features, centres).argmin(1) == data.labels
    assert right[data.train :].float().mean() > 0.95


def test_the_same_image_in_two_places_is_found() -> None:
    pixels = torch.from_numpy(noise(300, 1, 5, 5))
    pixels[250], pixels[260], pixels[299] = pixels[3], pixels[3], pixels[120]
    data = dataset(images=pixels, labels=torch.arange(300) % 3, train=240)
    train, test = torch.arange(240), torch.arange(240, 300)
    assert overlap(data, test, train).tolist() == [[250, 3], [260, 3], [299, 120]]
    assert overlap(data, train, test).tolist() == [[3, 250], [120, 299]]
    assert overlap(data, test, train[:0]).shape == (0, 2)
    assert overlap(data, test[:5], train).shape == (0, 2)
    assert len(overlap(data, test, test)) == len(test)


def test_fingerprints_follow_content_not_place_or_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = torch.from_numpy(noise(50, 3, 4, 4))
    prints = fingerprints(pixels)
    assert len(set(prints.tolist())) == 50
    monkeypatch.setattr(sources, "CHUNK", 7)
    assert torch.equal(fingerprints(pixels.flip(0)).flip(0), prints)
    swapped = pixels.clone()
    swapped[:, 0], swapped[:, 1] = pixels[:, 1], pixels[:, 0]
    assert not (fingerprints(swapped) == prints).any()


def test_an_equal_fingerprint_alone_does_not_make_a_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    data = dataset(images=torch.from_numpy(noise(6, 1, 4, 4)))
    monkeypatch.setattr(sources, "fingerprints", lambda images: torch.zeros(len(images), dtype=torch.int64))
    assert overlap(data, torch.arange(3), torch.arange(3, 6)).shape == (0, 2)
