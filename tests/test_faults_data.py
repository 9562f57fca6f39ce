"""Data and partitions that are not as one would wish (fault cases 13-16, 21, 22, 26): they work, or are refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from semifed import Dataset, EngineSettings, Experiment, ScenarioSettings, TrainSettings, run
from semifed.data.sources import SOURCES
from semifed.engine.assemble import prepare
from semifed.engine.notices import notices
from semifed.errors import DataError, SettingError
from toys import TINY, call, rows_in, sets, tiny


def test_13_14_15_clients_without_labels_without_unlabelled_data_and_without_data(tmp_path: Path) -> None:
    wide = ["scenario.clients=450", "scenario.partition=dirichlet", "scenario.alpha=0.5", "train.clients_per_round=40"]
    said = call(*tiny(tmp_path / "run", *wide, "train.rounds=2"))
    assert said.code == 0
    assert said.err.count("clients hold no data and are never drawn") == 1
    assert said.err.count("clients hold no label: terms that need one are 0 there") == 1
    notices = json.loads((tmp_path / "run/environment.json").read_bytes())["notices"]
    assert all(f"note: {notice}\n" in said.err for notice in notices)
    rows = rows_in(tmp_path / "run")
    assert all(row["terms"]["cross_entropy"] == row["terms"]["cross_entropy"] for row in rows), "not a number"
    assert all(row["models"]["global"]["loss"] < 100 for row in rows)
    split = json.loads(call("split", "show", *sets(*TINY, *wide), "--json").out)["holders"]
    empty = {int(name) for name, held in split.items() if name != "server" and not sum(map(sum, held.values()))}
    assert empty
    assert not any(empty & set(row["clients"]) for row in rows)


def test_16_a_class_without_any_label(tmp_path: Path) -> None:
    few = [word for word in TINY if "gamma" not in word] + ["scenario.total=3", "train.rounds=1"]
    words = ["run", "--out", str(tmp_path / "run")]
    said = call(*words, *sets(*few))
    assert said.code == 3
    assert "scenario.total: 3 gives 3 labels for 4 classes" in said.line
    assert "scenario.allow_missing = true" in said.line
    assert not (tmp_path / "run").exists()
    said = call(*words, *sets(*few, "scenario.allow_missing=true"))
    assert said.code == 0
    (note,) = (line for line in said.err.splitlines() if line.startswith("note: no sample with a label of class"))
    assert any(name in note for name in SOURCES["synthetic"].classes)


@pytest.mark.parametrize("drop_last", ["true", "false"])
def test_21_odd_batches_with_batch_norm(drop_last: str, tmp_path: Path) -> None:
    """Larger than what a client holds, and a last batch of one."""
    for batch in (1000, 32):  # 33 labelled samples or so a client: a batch of 32 leaves one
        words = [f"client.batch={batch}", f"client.drop_last={drop_last}", "net.norm=batch", "train.rounds=1"]
        assert call(*tiny(tmp_path / f"run{batch}", *words)).code == 0
        (row,) = rows_in(tmp_path / f"run{batch}")
        assert 0 < row["models"]["global"]["loss"] < 10


def _dataset(images: torch.Tensor, classes: int = 2, channels: int = 1) -> Dataset:
    labels = torch.arange(len(images)) % classes
    names = tuple(f"class {number}" for number in range(classes))
    train = len(images) * 3 // 4
    return Dataset("own", images, labels, train, names, (0.5,) * channels, (0.5,) * channels, flips=True)


def _experiment(dataset: Dataset, net: nn.Module | None = None, **settings: Any) -> Experiment:
    scenario = ScenarioSettings(clients=4, gamma=0.5)
    train = TrainSettings(rounds=1, clients_per_round=2)
    own = Experiment.of({"net": "mlp"}).net if net is None else net
    return Experiment(data=dataset, net=own, scenario=scenario, train=train, **settings)


def test_22_images_of_another_kind() -> None:
    grey = torch.randint(0, 256, (80, 1, 8, 8), dtype=torch.uint8)
    colour_net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 2))
    with pytest.raises(SettingError, match=r"net: Sequential does not take images of 1x8x8 \(channels x height"):
        run(_experiment(_dataset(grey), colour_net))
    with pytest.raises(SettingError, match=r"gives outputs of shape \(5,\), but the data have 2 classes"):
        run(_experiment(_dataset(grey), nn.Sequential(nn.Flatten(), nn.Linear(64, 5))))
    with pytest.raises(DataError, match=r"images are torch.float32, wanted a torch.uint8 tensor"):
        _dataset(grey.float())
    with pytest.raises(DataError, match=r"shape \(80, 8, 8, 3\).*try .permute\(0, 3, 1, 2\)"):
        _dataset(torch.zeros(80, 8, 8, 3, dtype=torch.uint8), channels=3)


def test_22_a_net_that_the_images_are_too_small_for(tmp_path: Path) -> None:
    said = call(*tiny(tmp_path / "run", "net=mnist-cnn"))
    assert said.code == 2
    assert "mnist-cnn cannot take images of 1x12x12" in said.line
    assert not (tmp_path / "run").exists()


def test_26_a_thousand_classes_and_a_single_one() -> None:
    images = torch.randint(0, 256, (4000, 1, 4, 4), dtype=torch.uint8)
    record = run(_experiment(_dataset(images, classes=1000), engine=EngineSettings(chunk=2)))
    assert record.summary["status"] == "finished"
    assert record.model["head.weight"].shape == (1000, 64)
    with pytest.raises(DataError, match="a task with 1 class has nothing to tell apart"):
        _dataset(images, classes=1)


def test_20_27_a_test_image_held_elsewhere_is_refused_and_twins_are_told() -> None:
    images = torch.randint(0, 256, (80, 1, 8, 8), dtype=torch.uint8)
    twins = images.clone()
    twins[1] = twins[0]
    record_of = [prepare(_experiment(_dataset(one))) for one in (images, twins)]
    told = ["more than once" in " ".join(notices(assembly)) for assembly in record_of]
    assert told == [False, True]
    leaked = images.clone()
    leaked[79] = leaked[0]
    with pytest.raises(DataError, match="1 test images are also held elsewhere, the first is sample 79"):
        run(_experiment(_dataset(leaked)))
