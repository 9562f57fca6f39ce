"""Experiments: read, checked before any data are loaded, and written so that they run again."""

import dataclasses
import tomllib
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from semifed.data.scenario import ScenarioSettings
from semifed.data.sources import Dataset
from semifed.data.views import ViewSettings
from semifed.errors import SettingError
from semifed.experiment import EngineSettings, Experiment, TrainSettings, find_method, method_name
from semifed.methods import METHODS
from semifed.methods.fedavg import FedAvg, FedAvgPlus, FedProx
from semifed.nets.zoo import NetSettings
from semifed.settings import Settings
from semifed.training import ClientTraining, ServerTraining
from semifed.trust import GateSettings


@dataclass(frozen=True)
class ServerOnly(FedAvg):
    labels: ClassVar[tuple[str, ...]] = ("server",)

    class Nested(FedProx):
        pass


def test_the_default_is_a_whole_experiment() -> None:
    assert Experiment.read() == Experiment.of({}) == Experiment()


def test_short_forms_stand_for_tables() -> None:
    short = Experiment.of({"method": "fedavg+", "net": "mlp", "data": "mnist"})
    assert short.method == FedAvgPlus()
    assert short == Experiment.of({"method": {"name": "fedavg+"}, "net": {"name": "mlp"}, "data": "mnist"})
    assert Experiment.of({"method": {"name": "fedprox", "mu": 1}}).method == FedProx(mu=1.0)
    assert Experiment.read(None, ["method=fedprox", "method.mu=0.5"]).method == FedProx(mu=0.5)
    assert Experiment.read(None, ["net=mlp", "net.norm=group"]).net == NetSettings("mlp", "group")


def test_false_on_the_command_line_is_false() -> None:
    made = Experiment.read(None, ["method=fedavg+", "method.augment=false", "client.drop_last=true"])
    assert isinstance(made.method, FedAvgPlus)
    assert made.method.augment is False
    assert made.client.drop_last is True
    with pytest.raises(SettingError, match=r"method\.augment: expected true or false, not 'False'"):
        Experiment.read(None, ["method=fedavg+", "method.augment=False"])


@pytest.mark.parametrize(
    ("tables", "problem"),
    [
        ({"methd": "fedavg"}, "methd: no such setting; did you mean method?"),
        ({"train": {"rounds": "ten"}}, "train.rounds: expected a whole number, not 'ten'"),
        ({"train": {"rounds": 0}}, "train.rounds: must be at least 1, not 0"),
        ({"train": {"round": 3}}, "train.round: no such setting; did you mean rounds?"),
        ({"train": 3}, "train: expected a table, not 3"),
        ({"seed": "x"}, "seed: expected a whole number, not 'x'"),
        ({"seed": True}, "seed: expected a whole number, not True"),
        ({"data": "mnits"}, "data: there is no data set 'mnits'; did you mean mnist?"),
        ({"data": 3}, "data: expected text, not 3"),
        ({"net": "resnet"}, "net.name: there is no net 'resnet'; did you mean resnet9?"),
        ({"net": {"norm": "layer"}}, "net.norm: 'layer' is unknown; known are: batch, group, none"),
        ({"net": 3}, "net: expected a table, not 3"),
        ({"method": "fedavgg"}, "method.name: there is no method 'fedavgg'; did you mean fedavg?"),
        ({"method": {"name": 3}}, "method: expected a name or a table with a name"),
        ({"method": 3}, "method: expected a name or a table with a name"),
        ({"method": {"name": "fedavg", "mu": 1}}, "method.mu: no such setting; known are: weighting, repeat, augment"),
        ({"method": {"name": "fedprox", "mu": -1}}, "method.mu: must be at least 0, not -1.0"),
        ({"client": {"lr": 0}}, "client.lr: must be above 0, not 0.0"),
        ({"client": {"momentum": 1.0}}, "client.momentum: must be at least 0 and below 1, not 1.0"),
        ({"client": {"nesterov": True, "momentum": 0}}, "client.nesterov: needs client.momentum above 0"),
        ({"server": {"epochs": 0}}, "server.epochs: must be at least 1, not 0"),
        ({"views": {"weak": ["blur"]}}, "views.weak: 'blur' is unknown"),
        ({"scenario": {"alpha": 0}}, "scenario.alpha: must be above 0, not 0.0"),
        ({"engine": {"mode": "quick"}}, "engine.mode: 'quick' is unknown; known are: auto, mapped, single, fastest"),
        ({"engine": {"workers": 0}}, "engine.workers: must be at least 1, not 0"),
        (
            {"train": {"clients_per_round": 11}, "scenario": {"clients": 10}},
            "train.clients_per_round: 11 clients a round are more than the 10 of scenario.clients",
        ),
        (
            {"method": f"{__name__}:ServerOnly"},
            f"scenario.labels: {__name__}:ServerOnly does not work with labels at the client; it needs "
            'scenario.labels = "server"',
        ),
    ],
    ids=str,
)
def test_what_cannot_be_meant_is_refused(tables: dict[str, Any], problem: str) -> None:
    with pytest.raises(SettingError) as caught:
        Experiment.of(tables)
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"method": "fedavg"}, "method: expected Method, not 'fedavg'"),
        ({"net": "mlp"}, "net: expected NetSettings or Module, not 'mlp'"),
        ({"data": 3}, "data: expected str or Dataset, not 3"),
        ({"seed": 1.5}, "seed: expected int, not 1.5"),
        ({"train": {"rounds": 3}}, "train: expected TrainSettings, not {'rounds': 3}"),
    ],
    ids=str,
)
def test_wrong_objects_are_refused_in_python(wrong: dict[str, Any], problem: str) -> None:
    with pytest.raises(SettingError) as caught:
        Experiment(**wrong)
    assert str(caught.value) == problem


@pytest.mark.parametrize("name", sorted(METHODS))
def test_toml_out_and_in_is_the_same_experiment(name: str, tmp_path: Path) -> None:
    labels = METHODS[name].labels[0]
    made = Experiment.of({"method": name, "scenario": {"labels": labels, "validation": 500}, "net": "mlp"})
    made = made.replace(
        "seed=12345678901234567890", "net.norm=group", "views.weak=[]", "client.clip=0.1", "engine.device=cuda:1"
    )
    path = tmp_path / "experiment.toml"
    path.write_text(made.toml(), "utf-8")
    assert Experiment.read(path) == made
    assert Experiment.read(path).toml() == made.toml()


def test_every_table_has_help_for_every_option() -> None:
    kinds: list[type[Settings]] = [*METHODS.values(), ScenarioSettings, ViewSettings, TrainSettings, EngineSettings]
    for kind in [*kinds, ClientTraining, ServerTraining, NetSettings]:
        for one in dataclasses.fields(kind):
            assert len(one.metadata.get("help", "")) > 5, f"{kind.__name__}.{one.name}"
    tables: dict[str, Any] = {one.name: one.type for one in dataclasses.fields(Experiment)}
    for name, found in tables.items():
        if isinstance(found, type) and issubclass(found, Settings):
            assert found.table == name
    assert typing.get_args(tables["net"])[0].table == "net"


def test_a_users_own_method_is_found_by_module_and_class() -> None:
    assert find_method(f"{__name__}:ServerOnly") is ServerOnly
    assert method_name(ServerOnly) == f"{__name__}:ServerOnly"
    assert find_method(method_name(ServerOnly.Nested)) is ServerOnly.Nested
    made = Experiment.of({"method": {"name": f"{__name__}:ServerOnly", "repeat": 4}, "scenario": {"labels": "server"}})
    assert Experiment.of(made.tables()) == made


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("nowhere:Mine", "cannot import 'nowhere' of 'nowhere:Mine': ModuleNotFoundError"),
        (":Mine", "cannot import ''"),
        (".relative:Mine", "cannot import '.relative'"),
        ("broken_method:Mine", "cannot import 'broken_method' of 'broken_method:Mine': SyntaxError"),
        ("semifed.methods.fedavg:Nothing", "semifed.methods.fedavg has no class 'Nothing' that is a semifed Method"),
        ("semifed.methods.fedavg:", "has no class ''"),
        ("semifed.methods.fedavg:cross_entropy", "has no class 'cross_entropy'"),
        ("semifed.methods.base:Method", "has no class 'Method'"),
        ("pathlib:Path", "pathlib has no class 'Path' that is a semifed Method"),
    ],
)
def test_a_method_that_is_not_one_is_refused(
    name: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_method.py").write_text("def :", "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SettingError) as caught:
        find_method(name)
    assert problem in str(caught.value)


def test_replace_keeps_what_no_table_can_hold(synthetic: Dataset) -> None:
    @dataclass(frozen=True)
    class Local(FedAvg):
        pass

    own = Experiment(data=synthetic, net=nn.Linear(2, 2), method=Local(repeat=2))
    changed = own.replace("train.rounds=7", "seed=3")
    assert (changed.data, changed.net, changed.method) == (own.data, own.net, own.method)
    assert (changed.train.rounds, changed.seed) == (7, 3)
    assert own.replace("data=mnist", "net=mlp").net == NetSettings("mlp")
    assert own.tables()["data"] == "synthetic"
    assert own.tables()["net"] == {"name": "Linear"}


def test_options_without_a_name_are_those_of_the_default_method() -> None:
    assert Experiment.read(None, ["method.repeat=2"]).method == FedAvg(repeat=2)


@pytest.mark.parametrize(
    ("train", "rounds"),
    [
        (TrainSettings(rounds=3), [1, 2, 3]),
        (TrainSettings(rounds=50), [*range(4, 49, 4), 50]),
        (TrainSettings(rounds=50, evaluate_every=20), [20, 40, 50]),
    ],
    ids=str,
)
def test_when_a_run_is_tested(train: TrainSettings, rounds: list[int]) -> None:
    """Without a wish at most fifteen times, and after the last round always."""
    found = [round for round in range(1, train.rounds + 1) if train.tests_after(round)]
    assert found == rounds
    assert len(found) <= 15


def any_settings(kind: type[Settings]) -> st.SearchStrategy[dict[str, Any]]:
    """Some numbers and flags of a table, in or out of range."""
    hints = typing.get_type_hints(kind)
    plain = {bool: st.booleans(), int: st.integers(-3, 10**6), float: st.floats(allow_nan=False, width=32)}
    names = [one.name for one in dataclasses.fields(kind) if hints[one.name] in plain]
    return st.fixed_dictionaries({}, optional={name: plain[hints[name]] for name in names})


@given(
    any_settings(TrainSettings), any_settings(ClientTraining), any_settings(GateSettings), st.integers(-(2**40), 2**40)
)
def test_any_experiment_that_is_taken_comes_back_from_its_file(
    train: dict[str, Any], client: dict[str, Any], gate: dict[str, Any], seed: int
) -> None:
    try:
        made = Experiment.of({"seed": seed, "train": train, "client": client, "gate": gate})
    except SettingError:
        return
    assert Experiment.of(tomllib.loads(made.toml())) == made
