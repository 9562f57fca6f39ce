"""semifed doctor: every planted fault is found, and a healthy folder has none."""

import csv
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from album import CLASSES, album, picture, save
from semifed.data.sources import Dataset
from semifed.doctor import Report, examine
from semifed.doctor.budget import measured
from semifed.doctor.near import near_copies
from semifed.experiment import Experiment
from test_own_data import bomb
from toys import call, sets

SETTINGS = ("net=mlp", "scenario.clients=4", "train.clients_per_round=2", "method=fedavg-fixmatch")


def look(place: Path, *assignments: str) -> Report:
    return examine(Experiment.read(None, [f"data=folder:{place}", *SETTINGS, *assignments]))


def kinds(report: Report) -> dict[str, int]:
    return {finding.kind: finding.count for finding in report.findings}


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return album(tmp_path_factory.mktemp("doctor") / "healthy", labelled=20, unlabelled=90)


@pytest.fixture(scope="module")
def sick(healthy: Path) -> Path:
    """The healthy folder with fourteen faults."""
    root = shutil.copytree(healthy, healthy.parent / "sick")
    train, test = root / "train", root / "test"
    truncated = (train / "dark" / "003.png").read_bytes()[:-80]
    (train / "dark" / "003.png").write_bytes(truncated)  # 1 corrupt
    (train / "dark" / "bomb.png").write_bytes(bomb())  # 2 a decompression bomb
    shutil.copy(train / "red" / "000.png", train / "red" / "copy.png")  # 3 a duplicate
    brighter = picture("red", 1).astype(np.int64) + 6
    save(train / "red" / "brighter.png", brighter.clip(0, 255).astype(np.uint8))  # 4 a near duplicate
    shutil.copy(train / "light" / "005.png", test / "light" / "leak.png")  # 5 a leak into the test
    shutil.copy(train / "light" / "006.png", train / "dark" / "other.png")  # 6 one image under two labels
    (train / "green").mkdir()  # 7 an empty class folder, so a class without a label
    save(train / "blue" / "000.png", picture("dark", 555))  # 8 a tiny class
    save(test / "lihgt" / "000.png", picture("light", 556))  # 9 a label that is no class
    save(train / "light" / "flat.png", np.full((12, 12, 3), 128, np.uint8))  # 10 a constant image
    save(train / "light" / "large.png", picture("light", 557, side=20))  # 11 another size
    save(train / "light" / "grey.png", picture("light", 558)[..., 0])  # 12 another number of channels
    (train / "red" / "notes.txt").write_text("call the lab")  # 13 no image
    save(train / "loose.png", picture("red", 559))  # 14 beside the class folders
    Image.fromarray(picture("red", 560)).convert("CMYK").save(train / "red" / "print.tif")  # 15 an odd mode
    return root


def test_a_healthy_folder_has_nothing(healthy: Path) -> None:
    report = look(healthy)
    assert report.findings == ()
    assert report.classes == {name: {"labelled": 20, "test": 5} for name in CLASSES}
    assert report.facts["training, unlabelled"] == 90
    assert report.facts["sizes"] == {"12x12": 165}
    assert report.sends["parts sent"] == ["net"]
    assert report.sends["bytes sent a round"] == 4 * (12 * 12 * 3 * 64 + 64 + 64 * 3 + 3)
    assert "labels" in report.sends["could reveal"] or report.sends["could reveal"]


def test_every_planted_fault_is_found(sick: Path) -> None:
    found = kinds(look(sick))
    wanted = {
        "corrupt file": 1, "too large": 1, "duplicate": 1, "near duplicate": 1, "leak into the test": 1,
        "contradiction": 1, "empty class": 1, "class without a label": 1, "tiny class": 1, "unknown label": 1,
        "constant image": 1, "mixed sizes": 1, "mixed channels": 1, "not an image": 1, "loose image": 1, "odd mode": 1,
    }  # fmt: skip
    assert {kind: found.get(kind) for kind in wanted} == wanted
    assert set(found) - set(wanted) <= {"class without a test"}  # which follows from the empty and the tiny class


def test_each_finding_names_the_file(sick: Path) -> None:
    told = {finding.kind: " ".join(finding.examples) for finding in look(sick).findings}
    assert "train/dark/003.png cannot be read" in told["corrupt file"]
    assert "train/dark/bomb.png" in told["too large"]
    assert "train/red/copy.png is the same as train/red/000.png" in told["duplicate"]
    assert "train/red/brighter.png looks nearly the same as train/red/001.png" in told["near duplicate"] or (
        "train/red/001.png" in told["near duplicate"] and "train/red/brighter.png" in told["near duplicate"]
    )
    assert "leak.png" in told["leak into the test"]
    assert "one labelled 'dark' and one 'light'" in told["contradiction"]
    assert "test/lihgt/000.png has the label 'lihgt', which is not one of the classes" in told["unknown label"]


def test_wrong_rows_of_a_csv_are_all_found(healthy: Path, tmp_path: Path) -> None:
    root = shutil.copytree(healthy, tmp_path / "listed")
    rows = [f"train/{kind}/{number:03d}.png,{kind}" for kind in CLASSES for number in range(12)]
    rows += ["gone.png,red", "train/red/000.png,red", "train/red/001.png,dark", "../up.png,red", "train/red/015.png"]
    rows += ["train/red/016.png,purple"]
    (root / "labels.csv").write_text("\n".join(["file,label", *rows]) + "\n")
    found = kinds(look(root, 'files.classes=["dark","light","red"]'))
    assert found == {"missing file": 1, "duplicate row": 1, "contradiction": 1, "wrong row": 2, "unknown label": 1,
                     "not listed": 1}  # fmt: skip


def test_the_command_says_it_in_words_a_page_and_its_exit_code(sick: Path, healthy: Path, tmp_path: Path) -> None:
    said = call("doctor", str(sick), *sets(*SETTINGS), "--html", str(tmp_path / "sick.html"))
    assert said.code == 3
    assert "kinds of error" in said.err
    assert "leak into the test: 1" in said.out
    page = (tmp_path / "sick.html").read_text("utf-8")
    assert "train/red/copy.png" in page
    assert not re.search(r"(src|href)=", page)
    said = call("doctor", f"folder:{healthy}", *sets(*SETTINGS), "--json", "--strict")
    assert said.code == 0, said.err
    told = json.loads(said.out)
    assert told["errors"] == told["warnings"] == 0
    assert told["sends"]["method"] == "fedavg-fixmatch"
    assert any("20.0 a class" in word for word in told["budget"])
    said = call("doctor", str(tmp_path / "nowhere"))
    assert said.code == 2


def test_names_from_outside_are_escaped(healthy: Path, tmp_path: Path) -> None:
    root = shutil.copytree(healthy, tmp_path / "odd")
    (root / "train" / "red" / "<script>alert(1)<script>.txt").write_text("x")
    call("doctor", str(root), *sets(*SETTINGS), "--html", str(tmp_path / "odd.html"))
    page = (tmp_path / "odd.html").read_text("utf-8")
    assert "&lt;script&gt;alert" in page
    assert "<script>" not in page


def test_settings_that_would_be_refused_and_unreadable_data_are_findings(healthy: Path, tmp_path: Path) -> None:
    assert kinds(look(healthy, "scenario.validation=500")) == {"a run would be refused": 1}
    np.savez(tmp_path / "bad.npz", x=np.zeros((4, 3), np.float32), y=np.array([0, 1, 1, -4]))
    report = examine(Experiment.read(None, [f"data=npz:{tmp_path / 'bad.npz'}", "net=mlp"]))
    assert "label -4 of sample 3 is not in 0 to 1" in report.findings[0].examples[0]
    assert report.errors == 1


def test_vectors_and_known_data_are_looked_at_too() -> None:
    rng = np.random.default_rng(0)
    rows = torch.from_numpy(rng.normal(size=(60, 4)).astype(np.float32))
    rows[:, 2] = 7.0
    rows[59] = rows[0]
    data = Dataset("rows", rows, torch.arange(60) % 2, 50, ("a", "b"), (0.0,) * 4, (1.0,) * 4, flips=False)
    experiment = Experiment.read(None, ["net=mlp", "scenario.clients=4", "train.clients_per_round=2"])
    report = examine(Experiment(data=data, net=experiment.net, scenario=experiment.scenario, train=experiment.train))
    assert kinds(report) == {"constant column": 1, "leak into the test": 1}
    report = examine(experiment.replace("data=synthetic"))
    assert report.errors == 0


def test_near_copies_are_told_from_others() -> None:
    rng = np.random.default_rng(1)
    images = torch.from_numpy(rng.integers(0, 256, (300, 3, 16, 16), dtype=np.uint8))
    images[7] = (images[3].float() * 0.9 + 10).byte()
    images[9] = images[3]
    assert near_copies(images).tolist() == [[3, 7], [7, 9]]


def test_words_on_the_budget_come_from_our_own_figures(healthy: Path) -> None:
    rows = dict[tuple[str, str, str, str], dict[str, str]]()
    for name in ("label-efficiency.csv", "label-efficiency-validated.csv"):  # the second counts where both have a cell
        with (Path(__file__).parent.parent / "docs" / "results" / name).open(encoding="utf-8", newline="") as stream:
            rows |= {(row["data"], row["labels"], row["total"], row["method"]): row for row in csv.DictReader(stream)}
    for one in measured():
        assert rows[one.data, one.labels, str(one.total), "fedavg+"]["last"] == one.alone
        assert rows[one.data, one.labels, str(one.total), one.method]["last"] == one.last
    words = " ".join(look(healthy).budget)
    assert "60 labels for 3 classes, 20.0 a class and 20 at least; 90 training samples without a label" in words
    assert "Measured with 10 a class on mnist, labels at the client: 91.8 ± 0.9 % with labels alone" in words
