"""Mean Teacher (Tarvainen and Valpola, 2017) at the clients of FedAvg.

    client : the teacher starts as the received net; a step is that of FedSiam-MT (fedsiam.py)
    server : mean of the students; the teacher is neither sent nor kept

Differs from the authors' code: FedSiam's release has it for one client alone (MT-local) and in no table.
"""

from dataclasses import dataclass
from typing import ClassVar

from semifed.methods.base import Follow, Move
from semifed.methods.fedsiam import FedSiamMT, FedSiamPi
from semifed.nets.net import Net
from semifed.params import Parts


@dataclass(frozen=True)
class MeanTeacher(FedSiamMT):
    """A teacher that follows the student within a visit."""

    title: ClassVar[str] = "Mean Teacher at the clients of FedAvg (Tarvainen and Valpola 2017)"
    down: ClassVar[tuple[str, ...]] = ("online",)
    up: ClassVar[tuple[str, ...]] = ("online",)

    def init(self, net: Net, key: int) -> Parts:
        return {"online": net.init(key)}

    def start(self, down: Parts, kept: Parts) -> Parts:
        return {"online": down["online"], "target": down["online"]}

    def server(self) -> tuple[Move, ...]:
        return tuple(move for move in super().server() if not isinstance(move, Follow))


@dataclass(frozen=True)
class NoSiam(FedSiamPi):
    """FedSiam's ablation without siamese nets: the same as FedSiam-Pi."""

    title: ClassVar[str] = "FedSiam's ablation without a target net (the same as FedSiam-Pi)"
