"""The [scenario] table of an experiment, and the table of scenarios that `semifed list scenarios` shows."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Literal

from semifed.errors import SettingError
from semifed.settings import Settings, nearest, option

BUDGETS = ("gamma", "per_class", "per_class_client", "total")
DEFAULT_GAMMA = 0.1
POOR_SHARE = 0.05  # noniid-3: what the many clients with few labels own; 55% at the others follows from gamma


@dataclass(frozen=True)
class ScenarioKind:
    """One line of `semifed list scenarios`."""

    description: str
    labels: tuple[str, ...]
    uses: tuple[str, ...]


_BOTH = ("client", "server")
_ANY_BUDGET = ("gamma", "per_class", "per_class_client", "total")

SCENARIOS: Mapping[str, ScenarioKind] = MappingProxyType(
    {
        "iid": ScenarioKind("every client holds the same mix of classes", _BOTH, _ANY_BUDGET),
        "noniid": ScenarioKind(
            "data sorted by class, cut into classes_per_client shards a client, dealt at random (McMahan)",
            _BOTH,
            (*_ANY_BUDGET, "classes_per_client"),
        ),
        "noniid-1": ScenarioKind(
            "labelled and unlabelled data of classes_per_client random classes a client, every class evenly covered",
            _BOTH,
            (*_ANY_BUDGET, "classes_per_client"),
        ),
        "noniid-1-pairs": ScenarioKind(
            "as noniid-1 with the FedSiam authors' pairs: client i holds classes (i div 10, i mod 10); 100 clients",
            _BOTH,
            _ANY_BUDGET,
        ),
        "noniid-2": ScenarioKind(
            "labelled data of classes_per_client classes a client as noniid-1, unlabelled data of all classes",
            ("client",),
            (*_ANY_BUDGET, "classes_per_client"),
        ),
        "noniid-2-pairs": ScenarioKind(
            "as noniid-2 with the FedSiam authors' pairs of classes; 100 clients",
            ("client",),
            _ANY_BUDGET,
        ),
        "noniid-3": ScenarioKind(
            "all classes everywhere; a share gamma of the clients own most labels (55% of their data at gamma 0.1), "
            "the others own labels for 5% of theirs",
            ("client",),
            ("gamma",),
        ),
        "dirichlet": ScenarioKind(
            "each class is divided among the clients in proportions drawn from Dir(alpha)",
            _BOTH,
            (*_ANY_BUDGET, "alpha"),
        ),
        "dirichlet-pool": ScenarioKind(
            "FedMix: ten class profiles from Dir(alpha), client c asks by profile c mod 10 until class pools run dry",
            _BOTH,
            (*_ANY_BUDGET, "alpha"),
        ),
        "shards": ScenarioKind(
            "data sorted by class, cut into shards_per_client shards a client, dealt at random",
            _BOTH,
            (*_ANY_BUDGET, "shards_per_client"),
        ),
        "types": ScenarioKind(
            "FedMatch: unlabelled data by ten class profiles, client c has type c mod 10; labelled data balanced",
            _BOTH,
            _ANY_BUDGET,
        ),
        "streaming": ScenarioKind(
            "types + arrivals: the unlabelled data come in `arrivals` parts, one each rounds_per_arrival rounds "
            "(arrivals > 1 works with every other partition too)",
            _BOTH,
            (*_ANY_BUDGET, "arrivals", "rounds_per_arrival"),
        ),
    }
)


@dataclass(frozen=True)
class ScenarioSettings(Settings):
    """Who holds which samples and which labels, as the user asks for it."""

    table: ClassVar[str] = "scenario"

    labels: Literal["client", "server"] = option("client", "who holds the labels: client or server")
    partition: str = option("iid", "who holds which samples; see `semifed list scenarios`")
    clients: int = option(100, "how many clients there are", least=1, most=1_000_000)
    gamma: float | None = option(
        None,
        "share of the data that has a label; if no budget is given 0.1, or every label where samples have none",
        above=0,
        most=1,
    )
    per_class: int | None = option(None, "instead of gamma: labels of each class in all", least=1)
    per_class_client: int | None = option(None, "instead of gamma: labels of each class at each client", least=1)
    total: int | None = option(None, "instead of gamma: labels in all", least=1)
    classes_per_client: int = option(2, "classes that a client holds", least=1)
    alpha: float = option(0.5, "concentration of the Dirichlet distribution; smaller is more uneven", above=0)
    shards_per_client: int = option(2, "shards that a client holds", least=1)
    arrivals: int = option(1, "parts in which a client's unlabelled data arrive", least=1, most=10_000)
    rounds_per_arrival: int = option(10, "rounds from one arrival to the next", least=1)
    server_unlabelled: float = option(
        0.0, "unlabelled images at the server, as a multiple of its labelled ones (FedCon IV-E: 5.0)", least=0
    )
    pool: Literal["train", "all"] = option("train", "what is dealt out: the official training set, or all images")
    validation: int = option(0, "images set apart for validation", least=0)
    test: int | None = option(None, 'with pool = "all": how many test images are drawn', least=1)
    allow_missing: bool = option(False, "go on though a class has no label at all")
    skip_corrupt: bool = option(False, "leave out images that cannot be read, and say how many, instead of stopping")

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_partition()
        self._check_budget()
        if self.labels == "client" and self.server_unlabelled > 0:
            raise _bad("server_unlabelled", 'only with labels = "server" does the server hold data; leave it at 0')
        if self.pool == "all" and self.test is None:
            raise _bad("test", 'pool = "all" merges the official test set; say how many test images to draw')
        if self.pool == "train" and self.test is not None:
            raise _bad("test", 'the official test set is used; leave it out, or set pool = "all" to draw a new one')

    @property
    def budget(self) -> tuple[str, float]:
        """The name and the amount of the label budget that holds."""
        given = [(name, getattr(self, name)) for name in BUDGETS if getattr(self, name) is not None]
        return given[0] if given else ("gamma", DEFAULT_GAMMA)

    @property
    def budget_given(self) -> bool:
        """Whether the user has said how many labels there are to be."""
        return any(getattr(self, name) is not None for name in BUDGETS)

    def _check_partition(self) -> None:
        kind = SCENARIOS.get(self.partition)
        if kind is None:
            raise _bad("partition", f"{self.partition!r} is unknown; {nearest(self.partition, SCENARIOS)}")
        if self.labels not in kind.labels:
            fitting = ", ".join(name for name, other in SCENARIOS.items() if self.labels in other.labels)
            raise _bad("partition", f'{self.partition!r} does not fit labels = "{self.labels}"; use one of {fitting}')
        plain, pairs, _ = self.partition.partition("-pairs")
        if pairs and self.clients != 100:
            raise _bad("clients", f"{self.partition} is defined for 100 clients, not {self.clients}; use {plain}")
        if self.partition == "streaming" and self.arrivals < 2:
            raise _bad("arrivals", f"streaming needs at least 2 arrivals, not {self.arrivals}; set it, FedMatch has 10")

    def _check_budget(self) -> None:
        given = [name for name in BUDGETS if getattr(self, name) is not None]
        if len(given) > 1:
            raise _bad(given[1], f"the label budget is already given by {given[0]}; keep one of them")
        name, amount = self.budget
        if self.labels == "server" and name == "per_class_client":
            raise _bad(name, 'with labels = "server" no client holds labels; use per_class')
        if self.labels == "server" and name == "gamma" and amount == 1:
            raise _bad(name, 'with labels = "server" a share of 1 leaves nothing for the clients; lower it')
        if self.partition == "noniid-3" and (name != "gamma" or amount < POOR_SHARE):
            # Below 5% the clients with few labels alone would exceed the budget.
            raise _bad(name, f"noniid-3 takes its labels from gamma, at least {POOR_SHARE}; it is {amount:g}")


def _bad(name: str, problem: str) -> SettingError:
    return SettingError(f"scenario.{name}: {problem}")
