"""Splits: what is wrong is named, and a file that is damaged is never used."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch

from semifed.data.scenario import Scenario, ScenarioSettings, make
from semifed.data.sources import fingerprints
from semifed.errors import DataError

DIGITS = [str(number) for number in range(10)]
LABELS = np.arange(700) * 7919 % 10  # 600 training and 100 test samples


def split(**chosen: Any) -> Scenario:
    return make(ScenarioSettings(clients=10, **chosen), LABELS, 600, 0, DIGITS)


def moved(scenario: Scenario, **parts: Any) -> Scenario:
    return dataclasses.replace(scenario, **parts)


def test_validate_names_what_is_wrong() -> None:
    good = split()
    leaky = moved(good, test=np.concatenate([good.test, good.clients[3].labelled[:1]]))
    with pytest.raises(DataError, match=r"sample \d+ is in two places: client 3 \(labelled\) and the test set"):
        leaky.validate()
    with pytest.raises(DataError, match=r"sample 699 is held by nobody"):
        moved(good, test=good.test[:-1]).validate()
    with pytest.raises(DataError, match=r"the test set: sample 700 is outside the data set of 700"):
        moved(good, test=good.test + 1).validate()
    with pytest.raises(DataError, match="client 0: its arrivals do not add up"):
        moved(good, arrival_sizes=good.arrival_sizes + 1).validate()
    with pytest.raises(DataError, match="test: indices must be int64, not float64"):
        moved(good, test=good.test.astype(np.float64))
    with pytest.raises(ValueError, match="read-only"):
        good.clients[0].labelled[0] = 1


def test_verify_knows_its_data_and_finds_leaked_test_images() -> None:
    scenario = split()
    scenario.verify(LABELS.astype(np.uint8))
    with pytest.raises(DataError, match="of 700 samples, but the data have 699"):
        scenario.verify(LABELS[:-1])
    with pytest.raises(DataError, match="other labels or another order"):
        scenario.verify(LABELS[::-1])
    images = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (700, 1, 4, 4), np.uint8))
    scenario.verify(LABELS, fingerprints(images).numpy())
    images[650] = images[17]
    with pytest.raises(DataError, match=r"1 test images .* sample 650, equal to sample 17 \(client \d+ \(\w+\)\)"):
        scenario.verify(LABELS, fingerprints(images).numpy())
    with pytest.raises(DataError, match="5 content hashes for 700 samples"):
        scenario.verify(LABELS, fingerprints(images[:5]).numpy())


def test_a_saved_split_comes_back_whole(tmp_path: Path) -> None:
    path = tmp_path / "ein schöner split"
    for scenario in (split(arrivals=3, validation=20), split(labels="server", total=6, allow_missing=True)):
        scenario.save(path)
        back = Scenario.load(path)
        assert back.digest() == scenario.digest()
        assert back.missing == scenario.missing
        assert np.array_equal(back.unlabelled_at(1, 25), scenario.unlabelled_at(1, 25))
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_damaged_files_are_named_and_never_used(tmp_path: Path) -> None:
    path = tmp_path / "a.split"
    split(arrivals=2).save(path)
    whole = path.read_bytes()
    for position in range(0, len(whole), 23):
        flipped = bytearray(whole)
        flipped[position] ^= 0x15
        path.write_bytes(flipped)
        with pytest.raises(DataError, match=r"a\.split: "):
            Scenario.load(path)
    for length in (0, 7, 300, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(DataError, match=r"a\.split: "):
            Scenario.load(path)


def test_foreign_missing_and_newer_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "b.split"
    with pytest.raises(DataError, match=r"b\.split: no such split file"):
        Scenario.load(path)
    with pytest.raises(DataError, match="cannot be read"):
        Scenario.load(tmp_path)
    path.write_bytes(safetensors.numpy.save({"weight": np.ones(3)}))
    with pytest.raises(DataError, match="not a split of Semifed"):
        Scenario.load(path)
    path.write_bytes(safetensors.numpy.save({}, {"kind": "semifed-scenario", "version": "2"}))
    with pytest.raises(DataError, match="split format '2', but this Semifed reads '1'"):
        Scenario.load(path)
    path.write_bytes(safetensors.numpy.save({"test": np.ones(3)}, {"kind": "semifed-scenario", "version": "1"}))
    with pytest.raises(DataError, match="test is not a list of whole numbers"):
        Scenario.load(path)
    path.write_bytes(safetensors.numpy.save({}, {"kind": "semifed-scenario", "version": "1", "facts": json.dumps([])}))
    with pytest.raises(DataError, match="damaged"):
        Scenario.load(path)


def test_an_invalid_split_with_a_right_hash_is_refused(tmp_path: Path) -> None:
    good = split()
    moved(good, test=good.test[:-1]).save(tmp_path / "c.split")
    with pytest.raises(DataError, match=r"c\.split: sample 699 is held by nobody"):
        Scenario.load(tmp_path / "c.split")
    with pytest.raises(DataError, match="cannot be written"):
        good.save(tmp_path / "no folder" / "c.split")
