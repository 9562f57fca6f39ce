"""No federation at all, and all labels known: the bounds between which the methods lie.

    Local-X : every client trains by X on its own data and keeps its net; nothing is sent. The score is the mean over
              the clients of a round.
    X-SL    : FedAvg or FedProx with the labels of all samples known to the clients.

Differs from the authors' code: FedMatch, whose tables have these rows, released no baselines.
"""

from dataclasses import dataclass
from typing import ClassVar

from semifed.methods.base import Cohort, Method, Move
from semifed.methods.fedavg import FedAvg, FedProx
from semifed.methods.fixmatch import FixMatch
from semifed.methods.uda import UDA
from semifed.nets.net import Net
from semifed.params import Params, Parts


@dataclass(frozen=True)
class Local(Method):
    """A client's own training without anybody else."""

    leaves: ClassVar[str] = "Nothing."
    not_private: ClassVar[str] = "nothing is sent that noise could be added to."
    labels: ClassVar[tuple[str, ...]] = ("client",)
    down: ClassVar[tuple[str, ...]] = ()
    up: ClassVar[tuple[str, ...]] = ()
    keeps: ClassVar[tuple[str, ...]] = ("net",)
    idle: ClassVar[tuple[str, ...]] = ("weighting",)

    def init(self, net: Net, key: int) -> Parts:
        return {}

    def enroll(self, net: Net, down: Parts, key: int) -> Parts:
        return {"net": net.init(key)}

    def start(self, down: Parts, kept: Parts) -> Parts:
        return super().start(kept, {})

    def server(self) -> tuple[Move, ...]:
        return ()

    def aggregate(self, net: Net, server: Parts, up: Parts, cohort: Cohort) -> Parts:
        return server

    def models(self, server: Parts) -> dict[str, Params]:
        return {}

    def local_model(self, up: Parts, kept: Parts) -> Params:
        own: Params = kept["net"]
        return own


@dataclass(frozen=True)
class LocalSL(Local, FedAvg):
    """All labels, each client alone."""

    title: ClassVar[str] = "all labels known, each client alone (upper bound without federation)"
    reveals: ClassVar[bool] = True


@dataclass(frozen=True)
class LocalFixMatch(Local, FixMatch):
    """FixMatch, each client alone."""

    title: ClassVar[str] = "FixMatch, each client alone"


@dataclass(frozen=True)
class LocalUDA(Local, UDA):
    """UDA, each client alone."""

    title: ClassVar[str] = "UDA, each client alone"


@dataclass(frozen=True)
class FedAvgSL(FedAvg):
    """FedAvg with all labels."""

    title: ClassVar[str] = "FedAvg, all labels known to the clients (upper bound)"
    reveals: ClassVar[bool] = True


@dataclass(frozen=True)
class FedProxSL(FedProx):
    """FedProx with all labels."""

    title: ClassVar[str] = "FedProx, all labels known to the clients (upper bound)"
    reveals: ClassVar[bool] = True
