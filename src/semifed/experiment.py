"""Experiment: the whole configuration as frozen, validated dataclasses; TOML in and out.

seed = 0
data = "mnist"                # or your own: "folder:PATH", see the table [files]
method = "fedavg+"            # or a table [method] with name and options
net = "mnist-cnn"             # not named: by the samples
[files] [scenario] [views] [train] [client] [server] [gate] [aggregate] [privacy] [attack] [engine] [federation]
"""

import dataclasses
import inspect
import math
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, cast

from torch import nn

from semifed.data.file_settings import FileSettings, kind_of
from semifed.data.scenario import ScenarioSettings
from semifed.data.sources import SOURCES, Dataset
from semifed.data.views import ViewSettings
from semifed.errors import SettingError
from semifed.federation_settings import FederationSettings
from semifed.methods import METHODS
from semifed.methods.base import Method
from semifed.methods.fedavg import FedAvg
from semifed.nets.zoo import NetSettings
from semifed.settings import Settings, build, conform, find_named, nearest, option, override, read_toml, write_toml
from semifed.training import ClientTraining, ServerTraining
from semifed.trust import AggregateSettings, AttackSettings, GateSettings, PrivacySettings

TESTS = 15
"""Tests of a run whose cadence is not set: enough for a curve, and a small share of the time."""


@dataclass(frozen=True)
class TrainSettings(Settings):
    """The [train] table: how long, with how many clients a round, and what is looked at when."""

    table: ClassVar[str] = "train"

    rounds: int = option(50, "rounds of the run", least=1)
    clients_per_round: int = option(
        10,
        "clients drawn each round from those that hold anything; not named: 10, or all of fewer",
        least=1,
    )
    evaluate_every: int | None = option(
        None,
        "rounds between two tests; not set: so that there are at most fifteen; the last round is always tested",
        least=1,
    )
    test_clients: bool = option(False, 'also test the net that each client sends; the mean score is the model "local"')
    checkpoint_every: int = option(1, "rounds between two checkpoints", least=1)
    stop_on_collapse: int = option(
        0, "end a run after so many rounds in a row whose pseudo-labels are all of one class; 0: go on", least=0
    )

    def tests_after(self, round: int) -> bool:
        """Whether the model is tested at the end of a round, counted from 1."""
        every = self.evaluate_every or math.ceil(self.rounds / TESTS)
        return round % every == 0 or round == self.rounds


@dataclass(frozen=True)
class EngineSettings(Settings):
    """The [engine] table: where and in which form clients are trained. It does not change what is computed."""

    table: ClassVar[str] = "engine"

    name: Literal["local", "ray"] = option(
        "local", "who trains: this machine, or Ray with its workers here or on a cluster (extra ray)"
    )
    address: str = option(
        "", "with ray: HOST:PORT or ray://HOST:PORT of a cluster, auto for a Ray that runs here; empty: one of its own"
    )
    mode: Literal["auto", "mapped", "single", "fastest"] = option(
        "auto",
        "clients of a chunk at once or one by one; auto: by the size of the net; fastest: by a timing at the start",
    )
    layout: Literal["auto", "channels-first", "channels-last"] = option(
        "auto", "how images lie in memory where clients train one by one; auto: channels last for large nets"
    )
    chunk: int = option(10, "clients trained at once; bounds the memory, and is what a worker takes", least=1)
    workers: int = option(1, "processes that train chunks side by side", least=1)
    start: Literal["auto", "fork", "spawn"] = option(
        "auto", "how workers start: fork at once from this process (Linux, CPU), or spawn anew, which works everywhere"
    )
    threads: int = option(1, "threads of each process", least=1)
    device: str = option("cpu", "cpu, cuda, cuda:1, mps, or auto for the best there is")


@dataclass(frozen=True)
class Experiment:
    """One run: what is trained on what, how, and where."""

    seed: int = 0
    data: str | Dataset = "mnist5k"
    method: Method = field(default_factory=FedAvg)
    net: NetSettings | nn.Module = field(default_factory=NetSettings)
    files: FileSettings = field(default_factory=FileSettings)
    scenario: ScenarioSettings = field(default_factory=ScenarioSettings)
    views: ViewSettings = field(default_factory=ViewSettings)
    train: TrainSettings = field(default_factory=TrainSettings)
    client: ClientTraining = field(default_factory=ClientTraining)
    server: ServerTraining = field(default_factory=ServerTraining)
    gate: GateSettings = field(default_factory=GateSettings)
    aggregate: AggregateSettings = field(default_factory=AggregateSettings)
    privacy: PrivacySettings = field(default_factory=PrivacySettings)
    attack: AttackSettings = field(default_factory=AttackSettings)
    engine: EngineSettings = field(default_factory=EngineSettings)
    federation: FederationSettings = field(default_factory=FederationSettings)

    def __post_init__(self) -> None:
        for one in dataclasses.fields(self):
            value = getattr(self, one.name)
            if not isinstance(value, cast(type, one.type)) or isinstance(value, bool):
                raise SettingError(f"{one.name}: expected {_words(one.type)}, not {value!r}")
        own = isinstance(self.data, str) and bool(kind_of(self.data))
        if isinstance(self.data, str) and not own and self.data not in SOURCES:
            raise SettingError(
                f"data: there is no data set {self.data!r}; {nearest(self.data, SOURCES)} "
                "(your own: folder:PATH, npz:PATH, parquet:PATH, csv:PATH or hf:NAME)"
            )
        if not own and self.files != FileSettings():
            raise SettingError("files: says how data of your own are read, such as data = folder:PATH; leave it out")
        if self.train.clients_per_round > self.scenario.clients:
            raise SettingError(
                f"train.clients_per_round: {self.train.clients_per_round} clients a round are more than the "
                f"{self.scenario.clients} of scenario.clients; lower one or raise the other"
            )
        trusted = self.scenario.labels == "server" or self.scenario.validation > 0
        self.aggregate.check(self.train.clients_per_round, trusted)
        self.attack.check(self.scenario.clients)
        patience = self.train.stop_on_collapse
        self.privacy.check(self.scenario.clients, self.aggregate.rule, self.gate.quorum, patience)
        if self.privacy.on and self.method.not_private:
            raise SettingError(f"privacy: does not go with {method_name(type(self.method))}: {self.method.not_private}")
        idle = [name for name in self.method.idle if getattr(self.method, name) != getattr(type(self.method), name)]
        if idle:
            raise SettingError(f"method.{idle[0]}: has no effect in {method_name(type(self.method))}; leave it out")
        if self.method.needs_validation() and not self.scenario.validation:
            raise SettingError(
                f"scenario.validation: {method_name(type(self.method))} judges clients on images that the server holds "
                "out; set it, e.g. 500 (for fedmatch, or method.reliability=false and method.choice=embedding)"
            )
        if self.scenario.labels not in self.method.labels:
            fitting = " or ".join(f'"{where}"' for where in self.method.labels)
            raise SettingError(
                f"scenario.labels: {method_name(type(self.method))} does not work with labels at the "
                f"{self.scenario.labels}; it needs scenario.labels = {fitting}"
            )

    @classmethod
    def read(cls, path: Path | None = None, assignments: Sequence[str] = ()) -> "Experiment":
        """An experiment from a file, or the default one, with ``key=value`` assignments on top."""
        tables = read_toml(path) if path else {}
        for assignment in assignments:
            override(tables, _in_full(assignment))
        return cls.of(tables)

    @classmethod
    def read_split(cls, path: Path | None = None, assignments: Sequence[str] = ()) -> "Experiment":
        """What of an experiment makes its split; the rest, such as the clients a round, need not go with it."""
        tables = read_toml(path) if path else {}
        for assignment in assignments:
            override(tables, _in_full(assignment))
        unknown = next((name for name in tables if name not in cls.__dataclass_fields__), None)
        if unknown:
            raise SettingError(f"{unknown}: no such setting; {nearest(unknown, list(cls.__dataclass_fields__))}")
        needed: tuple[str, ...] = ("seed", "data", "files", "scenario")
        parts = {name: tables[name] for name in needed if name in tables}
        return cls.of({**parts, "train": {"clients_per_round": 1}})

    @classmethod
    def of(cls, tables: Mapping[str, Any]) -> "Experiment":
        """An experiment from nested tables of plain values; what is made already is taken as it is."""
        tables = _with_cohort(tables)
        values = {
            one.name: _read_field(one, tables.pop(one.name)) for one in dataclasses.fields(cls) if one.name in tables
        }
        if tables:
            unknown = next(iter(tables))
            raise SettingError(
                f"{unknown}: no such setting; {nearest(unknown, [one.name for one in dataclasses.fields(cls)])}"
            )
        return cls(**values)

    def tables(self) -> dict[str, Any]:
        """The resolved experiment as nested tables of plain values; `of` makes the same experiment from them."""
        data = self.data if isinstance(self.data, str) else self.data.name
        net = dataclasses.asdict(self.net) if isinstance(self.net, NetSettings) else {"name": type(self.net).__name__}
        method = {"name": method_name(type(self.method)), **dataclasses.asdict(self.method)}
        rest = [one.name for one in dataclasses.fields(self) if one.name not in ("seed", "data", "method", "net")]
        settings = {name: dataclasses.asdict(getattr(self, name)) for name in rest}
        return {"seed": self.seed, "data": data, "method": method, "net": net, **settings}

    def toml(self) -> str:
        """The resolved experiment as a file that runs it again."""
        return write_toml(self.tables())

    def replace(self, *assignments: str) -> "Experiment":
        """The same experiment with ``key=value`` assignments on top."""
        tables = self.tables()
        for assignment in assignments:
            override(tables, _in_full(assignment))
        before = self.tables()
        # What was not assigned stays the same object: a user's own net, data or method is in no table.
        same = {name: getattr(self, name) for name in before if tables[name] == before[name]}
        return type(self).of(tables | same)


def _in_full(assignment: str) -> str:
    """``engine=ray`` says who trains; unlike the options of another method or net, the rest of [engine] stays."""
    key, sign, name = assignment.partition("=")
    return f"engine.name={name}" if sign and key.strip() == "engine" else assignment


def _with_cohort(tables: Mapping[str, Any]) -> dict[str, Any]:
    """With fewer clients than a round has by default, and no word on the matter, all of them take part."""
    scenario, train = tables.get("scenario", {}), tables.get("train", {})
    if isinstance(scenario, Mapping) and isinstance(train, Mapping) and "clients_per_round" not in train:
        clients = scenario.get("clients")
        if isinstance(clients, int) and 0 < clients < TrainSettings().clients_per_round:
            return {**tables, "train": {**train, "clients_per_round": clients}}
    return dict(tables)


def _read_field(one: dataclasses.Field[Any], given: Any) -> Any:
    """One value of an experiment: an object as it is, a name or a table as what it stands for."""
    if one.name == "method":
        return given if isinstance(given, Method) else read_method(given)
    if one.name == "net" and not isinstance(given, nn.Module):
        return conform({"name": given} if isinstance(given, str) else given, NetSettings, "net")
    if one.name == "engine":
        return conform({"name": given} if isinstance(given, str) else given, EngineSettings, "engine")
    if isinstance(given, Dataset | nn.Module):
        return given
    return conform(given, str if one.name == "data" else one.type, one.name)


def _words(hint: Any) -> str:
    return " or ".join(kind.__name__ for kind in typing.get_args(hint) or (hint,))


def method_name(kind: type[Method]) -> str:
    """The name of a method in experiment files."""
    known = {method: name for name, method in METHODS.items()}
    return known.get(kind, f"{kind.__module__}:{kind.__qualname__}")


def read_method(given: Any) -> Method:
    """A method from its name, or from a table of its name and options; without a name it is the default one."""
    table = (
        {"name": given} if isinstance(given, str) else dict(given) if isinstance(given, Mapping) else {"name": given}
    )
    name = table.pop("name", method_name(FedAvg))
    if not isinstance(name, str):
        raise SettingError('method: expected a name or a table with a name, such as method = "fedavg"')
    return build(find_method(name), table, "method")


def find_method(name: str) -> type[Method]:
    """The class of a named method, or of a user's own as ``module:Class``."""
    if name in METHODS:
        return METHODS[name]
    module_name, colon, class_name = name.partition(":")
    if not colon:
        raise SettingError(f"method.name: there is no method {name!r}; {nearest(name, METHODS)}")
    found = find_named(name, "method.name")
    if not (inspect.isclass(found) and issubclass(found, Method) and found is not Method):
        raise SettingError(f"method.name: {module_name} has no class {class_name!r} that is a semifed Method")
    kind: type[Method] = found
    return kind
