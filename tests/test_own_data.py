"""A user's own data: folders, CSV lists, arrays and tables become a Dataset, or say in one line why not."""

import json
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import semifed
from album import CLASSES, album, picture, save
from semifed.data.file_settings import FileSettings, kind_of, short_name
from semifed.data.own import load
from semifed.data.sources import Dataset
from semifed.engine.assemble import prepare
from semifed.engine.notices import notices
from semifed.errors import DataError, SettingError
from semifed.experiment import Experiment
from toys import call, sets

QUICK = (
    "net=mlp", "scenario.clients=4", "train.clients_per_round=2", "train.rounds=2", "client.epochs=1", "views.cutout=4",
)  # fmt: skip


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return album(tmp_path / "photos")


def counts(data: Dataset) -> list[int]:
    """Of the training set: how many have no label, and how many are of each class."""
    return (data.labels[: data.train] + 1).bincount(minlength=len(data.classes) + 1).tolist()


def test_class_folders_an_unlabelled_folder_and_a_test_folder(photos: Path) -> None:
    data = load(f"folder:{photos}")
    assert data.classes == CLASSES
    assert data.images.shape == (24 + 60 + 15, 3, 12, 12)
    assert counts(data) == [60, 8, 8, 8]
    assert data.labels[data.train :].bincount().tolist() == [5, 5, 5]
    assert data.names[0] == "train/dark/000.png"
    assert data.notes == ()
    assert np.array_equal(data.images[0].permute(1, 2, 0).numpy(), picture("dark", 0))


def test_classes_may_lie_at_the_root_and_the_test_part_is_then_drawn_by_content(tmp_path: Path) -> None:
    root = album(tmp_path / "a", labelled=10, test=0)
    for kind in CLASSES:
        (root / "train" / kind).rename(root / kind)
    (root / "train").rmdir()
    data = load(f"folder:{root}")
    assert counts(data) == [60, 8, 8, 8]
    assert "6 of 30 labelled samples, about 20% of each class" in data.notes[0]
    assert "±41 points" in data.notes[0]
    test = {tuple(image.flatten().tolist()) for image in data.images[data.train :]}
    for kind in CLASSES:  # other names, so another order
        for path in sorted((root / kind).iterdir()):
            path.rename(path.with_name(f"x{99 - int(path.stem):03d}.png"))
    again = load(f"folder:{root}")
    assert {tuple(image.flatten().tolist()) for image in again.images[again.train :]} == test
    whole = load(f"folder:{root}", files=FileSettings(test=0))
    assert whole.train == len(whole.images) == 90


def test_copies_of_a_drawn_test_image_do_not_stay_in_the_training_set(tmp_path: Path) -> None:
    root = album(tmp_path / "a", labelled=10, test=0, unlabelled=10)
    for number in range(10):
        save(root / "unlabelled" / f"copy{number}.png", picture("red", number))
    data = load(f"folder:{root}")
    assert counts(data) == [18, 8, 8, 8]
    assert data.notes[1] == "2 further copies of test samples are left out of the training set"


def test_a_csv_names_files_labels_and_parts(photos: Path) -> None:
    rows = ["\ufefffile;label;part"]
    for number in range(4):
        rows += [f"train/{kind}/00{number}.png;{kind};train" for kind in ("dark", "red")]
    rows += ["test/dark/000.png;dark;test", "test/red/000.png;red;test", "unlabelled/005.png;;"]
    (photos / "labels.csv").write_text("\r\n".join(rows), encoding="utf-8")
    data = load(f"folder:{photos}")
    assert data.classes == ("dark", "red")
    assert counts(data) == [1, 4, 4]
    assert len(data.images) == 11
    assert data.notes == ("88 images are not in labels.csv and are not read",)
    assert len(load(f"folder:{photos / 'labels.csv'}").images) == 11


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ("file,label\ngone.png,dark", r"labels.csv row 2 names 'gone.png', and there is no such file"),
        ("file,label\n../x.png,dark", r"row 2 names '../x.png', which does not lie below"),
        ("file,label\nC:/x.png,dark", r"does not lie below"),
        ("file,label\ntest/red/000.png,red\ntest/red/000.png,dark", r"row 3 says that .* is 'dark', row 2 says 'red'"),
        ("file,label\ntest/red/000.png", r"row 2 has 1 fields, the first row 2"),
        ("name,label\ntest/red/000.png,red", r"has the columns name, label; wanted file and label"),
        ("file,label,part\ntest/red/000.png,red,val", r"row 2 says 'val', wanted train or test"),
        ("", r"has no first row|has the columns"),
    ],
)
def test_a_wrong_row_is_named(photos: Path, rows: str, problem: str) -> None:
    (photos / "labels.csv").write_text(rows, encoding="utf-8")
    with pytest.raises(DataError, match=problem) as caught:
        load(f"folder:{photos}")
    assert "\n" not in str(caught.value)


def bomb() -> bytes:
    """A PNG of a few bytes that claims to be 60,000 pixels wide and high."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", 60_000, 60_000, 1, 0, 0, 0, 0)
    chunks = (chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(bytes(10))), chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "is not an image of a format that is read"),
        (b"<html>not found</html>", "is not an image"),
        (b"truncated", r"003\.png cannot be read"),
        (bomb(), r"003\.png (claims 3,600,000,000 pixels|cannot be read \(Image size)"),
    ],
)
def test_a_corrupt_image_is_named_or_counted(photos: Path, content: bytes, problem: str) -> None:
    path = photos / "train" / "red" / "003.png"
    path.write_bytes(path.read_bytes()[:-60] if content == b"truncated" else content)
    with pytest.raises(DataError, match=problem) as caught:
        load(f"folder:{photos}")
    assert "scenario.skip_corrupt = true" in str(caught.value)
    data = load(f"folder:{photos}", skip_corrupt=True)
    assert counts(data) == [60, 8, 8, 7]
    assert "train/red/003.png" not in data.names
    assert data.notes[0].startswith("1 of 99 images are left out, the first: ")


def test_sizes_and_colours_are_changed_on_request(tmp_path: Path) -> None:
    root = tmp_path / "mixed"
    for number in range(4):
        save(root / "dark" / f"{number}.png", picture("dark", number, side=10 + number))
        save(root / "light" / f"{number}.png", picture("light", number, side=16)[:, :9, 0])
    with pytest.raises(DataError, match=r"5 different sizes \(9x16, 10x10, 11x11, \.\.\.\); set files\.size, e\.g\. 9"):
        load(f"folder:{root}")
    for fit in ("crop", "stretch"):
        data = load(f"folder:{root}", files=FileSettings(size=8, fit=fit))
        assert data.images.shape[1:] == (3, 8, 8)
        assert data.mean == (0.5,) * 3
    assert load(f"folder:{root}", files=FileSettings(size=8, colour="grey")).images.shape[1] == 1
    with pytest.raises(SettingError, match=r"files\.mean: has 1 values, but the data have 3 channels"):
        load(f"folder:{root}", files=FileSettings(size=8, mean=(0.5,), std=(0.5,)))


def test_every_mode_of_image_becomes_bytes(tmp_path: Path) -> None:
    ramp = np.linspace(0, 255, 64).astype(np.uint8).reshape(8, 8)
    grey = Image.fromarray(ramp)
    kinds: dict[str, Image.Image] = {
        "grey": grey, "rgb": grey.convert("RGB"), "rgba": grey.convert("RGBA"), "palette": grey.convert("P"),
        "alpha": grey.convert("LA"), "cmyk": grey.convert("RGB").convert("CMYK"),
        "deep": Image.fromarray(ramp.astype(np.uint16) * 257),
    }  # fmt: skip
    for name, image in kinds.items():
        place = tmp_path / "modes" / ("a" if len(name) % 2 else "b") / f"{name}.{'tif' if name == 'cmyk' else 'png'}"
        place.parent.mkdir(parents=True, exist_ok=True)
        image.save(place)
    data = load(f"folder:{tmp_path / 'modes'}", files=FileSettings(test=0))
    assert len(data.images) == len(kinds)
    for name, image in zip(data.names, data.images, strict=True):
        assert (image.float() - torch.from_numpy(ramp).float()).abs().max() <= 3, name
    Image.fromarray(ramp.astype(np.float32)).save(tmp_path / "modes" / "a" / "float.tif")
    with pytest.raises(DataError, match=r"float\.tif has pixels that are floating-point numbers"):
        load(f"folder:{tmp_path / 'modes'}")


def test_a_photograph_is_turned_as_its_camera_says(tmp_path: Path) -> None:
    image, exif = Image.fromarray(picture("red", 0)[:6]), Image.Exif()
    exif[0x0112] = 6
    for kind in ("a", "b"):
        for number in range(3):
            path = tmp_path / "p" / kind / f"{number}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            image.save(path, exif=exif)
    assert load(f"folder:{tmp_path / 'p'}", files=FileSettings(test=0)).images.shape[1:] == (3, 12, 6)


def test_decoded_images_are_kept_on_request_and_only_while_the_files_stay(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("semifed.data.own.cache_folder", lambda: tmp_path / "cache")
    first = load(f"folder:{photos}")
    assert not (tmp_path / "cache").exists()
    load(f"folder:{photos}", files=FileSettings(cache=True))
    monkeypatch.setattr("semifed.data.pictures.read", lambda *_: pytest.fail("decoded again"))
    kept = load(f"folder:{photos}", files=FileSettings(cache=True))
    assert torch.equal(kept.images, first.images)
    monkeypatch.undo()
    monkeypatch.setattr("semifed.data.own.cache_folder", lambda: tmp_path / "cache")
    save(photos / "train" / "dark" / "000.png", picture("dark", 77))
    assert not torch.equal(load(f"folder:{photos}", files=FileSettings(cache=True)).images, first.images)


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (
            lambda root: (root / "test" / "dark").rename(root / "test" / "drak"),
            r"drak/000\.png has the label 'drak', which is not one of the classes: dark, light",
        ),
        (lambda root: (root / "train").rename(root / "val"), "has no class folders: put the images of a class into"),
    ],
)
def test_a_folder_that_cannot_be_meant_is_refused(photos: Path, spoil: Callable[[Path], Any], problem: str) -> None:
    spoil(photos)
    with pytest.raises(DataError, match=problem):
        load(f"folder:{photos}")


def test_places_are_found_from_here_and_in_the_data_folder(photos: Path) -> None:
    with pytest.raises(DataError, match="photos: there is no such folder"):
        load("folder:photos")
    assert len(load("folder:photos", photos.parent).images) == 99
    assert kind_of("folder:C:\\images") == "folder"
    assert kind_of("folder:") == kind_of("mnist") == kind_of("nonsense:x") == ""
    assert short_name("folder:/data/my photos") == "my-photos"
    with pytest.raises(SettingError, match=r"no data set 'foldr:x'.*folder:PATH"):
        Experiment.of({"data": "foldr:x"})
    with pytest.raises(SettingError, match="files: says how data of your own are read"):
        Experiment.of({"data": "mnist", "files": {"size": 8}})


def test_a_folder_trains_from_the_command_line_and_is_told_apart(photos: Path, tmp_path: Path) -> None:
    words = sets(f"data=folder:{photos}", *QUICK, "method=fedavg-fixmatch", "train.rounds=12", "client.lr=0.05")
    said = call("run", *words, "--out", str(tmp_path / "run"), "--json")
    assert said.code == 0, said.err
    assert "60 training samples have no label; they are dealt out evenly" in said.err
    assert '"accuracy": 100.0' in said.out
    facts = json.loads((tmp_path / "run" / "environment.json").read_text())["input"]
    assert facts["classes"] == list(CLASSES)
    assert facts["shape"] == [3, 12, 12]
    shown = call("split", "show", *sets(f"data=folder:{photos}", *QUICK))
    assert shown.code == 0
    assert "?" in shown.out


def test_every_label_counts_where_samples_have_none_unless_a_budget_says_less(photos: Path) -> None:
    experiment = Experiment.read(None, [f"data=folder:{photos}", *QUICK])
    split = prepare(experiment).scenario
    assert sum(len(holding.labelled) for holding in split.clients) == 24
    assert [len(holding.unlabelled) for holding in split.clients] == [15] * 4
    split = prepare(experiment.replace("scenario.per_class=2", "scenario.validation=3")).scenario
    assert sum(len(holding.labelled) for holding in split.clients) == 6
    assert sum(len(holding.unlabelled) for holding in split.clients) == 60 + 24 - 6 - 3
    at_server = ["scenario.labels=server", "scenario.server_unlabelled=0.5", "scenario.partition=dirichlet"]
    assembly = prepare(experiment.replace(*at_server))
    assert len(assembly.scenario.server.labelled) == 24
    assert len(assembly.scenario.server.unlabelled) == 12
    assert sum(len(holding) for holding in assembly.scenario.clients) == 48
    assert any("have no label" in notice for notice in notices(assembly))
    with pytest.raises(SettingError, match=r"scenario\.gamma: noniid-3 is about the share of labels"):
        prepare(experiment.replace("scenario.partition=noniid-3"))


def test_a_bound_with_all_labels_uses_those_that_are_known(photos: Path) -> None:
    name = next(name for name, method in semifed.METHODS.items() if method.reveals)
    record = semifed.run(Experiment.read(None, [f"data=folder:{photos}", f"method={name}", *QUICK]))
    assert record.summary["status"] == "finished"
    assert all(np.isfinite(list(row["terms"].values())).all() for row in record.rows if "terms" in row)


def test_unlabelled_test_samples_and_data_without_any_label_are_refused(photos: Path) -> None:
    (photos / "labels.csv").write_text("file,label,part\ntest/red/000.png,,test\ntrain/red/000.png,red,\n")
    with pytest.raises(DataError, match=r"test/red/000\.png is in the test set and has no label"):
        load(f"folder:{photos}")
    (photos / "labels.csv").write_text("file,label\ntest/red/000.png,\ntrain/red/000.png,\n")
    data = load(f"folder:{photos}", files=FileSettings(classes=CLASSES))  # a site may hold no label at all
    assert counts(data) == [2, 0, 0, 0]
    with pytest.raises(DataError, match="no training sample has a label"):
        prepare(Experiment.read(None, [f"data=folder:{photos}", 'files.classes=["dark","light","red"]', *QUICK]))
