"""Every fault of the list has a test that is there; and those tests that have no better place."""

import ast
import pickle
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import semifed
from semifed.data import readers
from semifed.data.scenario import Scenario
from semifed.errors import DataError, SemifedError, SettingError
from semifed.experiment import Experiment
from semifed.payload import PayloadError, unpack
from toys import call, refused, tiny

pytest_plugins = ("folders",)

ROOT = Path(__file__).parent.parent
CASES = tomllib.loads((ROOT / "tests" / "cases.toml").read_text("utf-8"))["case"]
REMOVALS = tomllib.loads((ROOT / "tests" / "removals.toml").read_text("utf-8"))["removal"]


def test_every_case_has_a_test() -> None:
    assert [case["number"] for case in CASES] == list(range(1, 73))
    assert all(case["tests"] for case in CASES)


def test_every_case_has_a_removal_that_its_tests_are_tried_with() -> None:
    """`make mutate` makes them and runs the tests of each case; what it takes away must still be there."""
    assert {removal["case"] for removal in REMOVALS} == set(range(1, 73))
    assert all(removal["becomes"] != removal["text"] for removal in REMOVALS)
    for removal in REMOVALS:
        assert (ROOT / removal["file"]).read_text("utf-8").count(removal["text"]) == 1, removal


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["number"]))
def test_the_tests_of_a_case_are_there(case: dict[str, Any]) -> None:
    for test in case["tests"]:
        file, _, name = test.partition("::")
        tree = ast.parse((ROOT / file).read_text("utf-8"))
        assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}, test


def test_34_nets_train_in_the_type_they_have(small: Callable[..., Experiment]) -> None:
    with pytest.raises(SettingError, match="no such setting"):
        small("engine.precision=float16")
    assert {value.dtype for value in semifed.run(small("train.rounds=1")).model.values()} == {torch.float32}


def test_39_fedmatch_with_fewer_clients_than_helpers(small: Callable[..., Experiment]) -> None:
    words = ("method=fedmatch", "method.count=5", "scenario.clients=2", "train.clients_per_round=2")
    record = semifed.run(small(*words, "scenario.validation=20", "train.rounds=2"))
    assert record.rows[0]["terms"]["inter_client"] == 0
    assert not any(row["refused"] for row in record.rows)


def test_61_rounds_do_not_go_by_the_time_of_day() -> None:
    engine = (ROOT / "src" / "semifed" / "engine").glob("*.py")
    for path in sorted(path for path in engine if path.stem != "environment"):  # which notes when a run began
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                assert (node.value.id, node.attr) != ("time", "time"), path
                assert node.value.id != "datetime", path


class Bomb:
    """Unpickled, it leaves a mark."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.mark,)


def test_69_a_pickle_is_never_opened(tmp_path: Path, stopped: Path) -> None:
    mark, file = tmp_path / "executed", tmp_path / "train.npz"
    bomb = pickle.dumps(Bomb(mark))
    file.write_bytes(bomb)
    with pytest.raises(PayloadError):
        unpack(bomb)
    for read in (
        Scenario.load,
        lambda path: readers.read_idx(path, (1, 2, 2)),
        lambda path: readers.read_mat(path, 1),
        lambda path: readers.read_parquet(path, 1),
        lambda path: readers.read_cifar(path, {"data_batch_1.bin": ""}, 1),
    ):
        with pytest.raises(DataError):
            read(file)
    with pytest.raises(SemifedError):
        semifed.run(Experiment.read(None, [f"data=npz:{file}"]))
    (stopped / "checkpoint.safetensors").write_bytes(bomb)
    refused(stopped)
    assert not mark.exists()
    pickle.loads(bomb)  # noqa: S301  the bomb is one
    assert mark.exists()


def test_71_no_file_name_of_a_sample_leaves_in_a_run(tmp_path: Path) -> None:
    for number in range(40):
        place = tmp_path / "data" / "train" / f"class{number % 2}"
        place.mkdir(parents=True, exist_ok=True)
        Image.new("L", (12, 12), 100 * (number % 2) + number).save(place / f"canary-{number}.png")
    words = [f"data=folder:{tmp_path / 'data'}", "scenario.clients=2", "train.clients_per_round=2", "train.rounds=1"]
    said = call(*tiny(tmp_path / "run", *words))
    assert said.code == 0, said
    assert "canary" not in said.out + said.err
    for path in (tmp_path / "run").rglob("*"):
        assert not path.is_file() or b"canary" not in path.read_bytes(), path


def test_72_no_setting_holds_a_secret() -> None:
    for table in Experiment().tables().values():
        for name in table if isinstance(table, dict) else ():
            assert not {"key", "password", "secret", "token"} & set(name.split("_")), name
