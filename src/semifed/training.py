"""How a trainee, a client or the server, trains: its share of an experiment file."""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from semifed.errors import SettingError
from semifed.settings import Settings, option


@dataclass(frozen=True)
class Training(Settings):
    """Epochs, batches and the optimiser, which starts afresh at every visit."""

    epochs: int = option(5, "passes over the trainee's data a visit", least=1)
    steps: int | None = option(None, "at most so many steps a visit", least=1)
    batch: int = option(10, "labelled (or mixed) samples a step", least=1)
    unlabelled_batch: int = option(50, "unlabelled samples a step, where a method reads them apart", least=1)
    drop_last: bool = option(False, "leave out the last batch of an epoch if it is not full")
    lr: float = option(0.01, "learning rate", above=0)
    decay: Literal["none", "linear", "cosine"] = option("none", "how the rate falls from round to round towards 0")
    momentum: float = option(0.9, "momentum", least=0, below=1)
    nesterov: bool = option(False, "Nesterov's form of momentum")
    weight_decay: float = option(1e-4, "weight decay, added to the gradient", least=0)
    clip: float | None = option(None, "largest norm of a gradient, over all parameters of a move", above=0)

    def rate(self, round: int, rounds: int) -> float:
        """The learning rate in a round, counted from 0, of so many."""
        gone = round / rounds if rounds else 0.0
        match self.decay:
            case "linear":
                return self.lr * (1 - gone)
            case "cosine":
                return self.lr * (1 + math.cos(math.pi * gone)) / 2
        return self.lr

    def rows_seen(self, held: int) -> int:
        """How many different unlabelled samples a visit looks at, at most: few steps do not come round to all held."""
        return min(held, self.steps * self.unlabelled_batch) if self.steps else held

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nesterov and not self.momentum:
            raise SettingError(f"{self.table}.nesterov: needs {self.table}.momentum above 0")


@dataclass(frozen=True)
class ClientTraining(Training):
    """The [client] table."""

    table: ClassVar[str] = "client"


@dataclass(frozen=True)
class ServerTraining(Training):
    """The [server] table: used where the server holds data and the method trains there."""

    table: ClassVar[str] = "server"

    epochs: int = option(1, "passes over the server's data a round", least=1)
