"""A method: a frozen dataclass of hyper-parameters whose functions are pure, over named parts.

It states which parts go down, come up and are kept at a client, which samples a step reads, what a step
does, and how the server merges. It never sees a loop over clients, a device, a file or a network, and it
has no branch for a scenario: a loss is masked by which rows carry labels.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

from torch import Tensor

from semifed.batch import Batch, Clock, Pool
from semifed.methods import averaging
from semifed.nets.net import Net, Pass
from semifed.params import Params, Parts, pick
from semifed.payload import Partial
from semifed.settings import Settings, option

Terms = dict[str, Tensor]
"""The named terms of a loss, each a scalar; their sum is descended and each is recorded."""

Loss = Callable[[Pass, Parts, Batch], Terms]


class Descend(NamedTuple):
    """A gradient step on the parts it names."""

    parts: tuple[str, ...]
    loss: Loss


class Follow(NamedTuple):
    """A moving average: the part keeps `decay` of itself and takes the rest from the parts it follows."""

    part: str
    of: tuple[str, ...]
    decay: float | Callable[[Clock], Tensor]


Move = Descend | Follow


class Visit(NamedTuple):
    """One client's turn in a round."""

    client: int
    slot: int  # its place in the cohort
    round: int


class Cohort(NamedTuple):
    """The clients whose uploads are merged, in the order of the uploads."""

    clients: tuple[int, ...]
    examples: Tensor  # how many different samples each holds to read; 0 where it has none
    visits: Tensor  # how often each has taken part, the present visit included
    round: int  # from 0
    rounds: int  # how many the run has
    slots: tuple[int, ...] = ()  # the places of these clients in the round's cohort
    server_examples: int = 0  # how many samples the server has trained on in this round
    validation: tuple[Tensor, Tensor] | None = None  # images and labels that the server holds out, if any


@dataclass(frozen=True)
class Method(Settings):
    """What every method has; the fields of a subclass are its options."""

    table: ClassVar[str] = "method"
    title: ClassVar[str] = ""
    """One line for lists: what it is and where it comes from."""
    leaves: ClassVar[str] = "The trained parameters: classes, and after few steps images, can be guessed from them."
    """What leaves a client, and what it could reveal."""
    labels: ClassVar[tuple[str, ...]] = ("client", "server")
    """Where labels may be for this method to make sense."""
    down: ClassVar[tuple[str, ...]] = ("net",)
    """The parts that a client receives."""
    up: ClassVar[tuple[str, ...]] = ("net",)
    """The parts that the server receives."""
    keeps: ClassVar[tuple[str, ...]] = ()
    """The parts that a client keeps between its visits and never sends."""
    not_private: ClassVar[str] = ""
    """Why differential privacy ([privacy]) makes no sense for it, where that is so."""
    reveals: ClassVar[bool] = False
    """An upper bound: clients know the labels of all their samples."""
    norm: ClassVar[Literal["batch", "group", "none"] | None] = None
    """The normalisation that nets get for this method where net.norm is not set."""
    by_layer: ClassVar[tuple[str, ...]] = ()
    """Parts of an upload that hold one number a layer; they stand in the rows of a run."""
    server_last: ClassVar[bool] = False
    """The server trains after it has merged, not before it sends."""

    idle: ClassVar[tuple[str, ...]] = ()
    """Options that are inherited and have no effect here."""

    weighting: averaging.Weighting = option("examples", "how much a client weighs in the mean")

    def needs_validation(self) -> bool:
        """Whether the server must hold out images with labels for this method."""
        return False

    def reads(self) -> dict[str, Pool]:
        """What a client reads in a step; the first pool that it holds sets the length of an epoch."""
        raise NotImplementedError

    def client(self) -> tuple[Move, ...]:
        """What a client does in a step."""
        raise NotImplementedError

    def server_reads(self) -> dict[str, Pool]:
        """What the server reads in a step of its own, where it holds data."""
        return self.reads()

    def server(self) -> tuple[Move, ...]:
        """What the server does in a step of its own."""
        return ()

    def init(self, net: Net, key: int) -> Parts:
        """The server's parts before the first round."""
        return {"net": net.init(key)}

    def download(self, server: Parts, visit: Visit) -> Parts:
        """What one client receives."""
        return pick(server, self.down)

    def enroll(self, net: Net, down: Parts, key: int) -> Parts:
        """What a client keeps before its first visit."""
        return {}

    def start(self, down: Parts, kept: Parts) -> Parts:
        """The parts a client's visit starts with."""
        return {**down, **kept}

    def pace(self, parts: Parts, clock: Clock) -> float | Tensor:
        """What the learning rate is multiplied with."""
        return 1.0

    def upload(self, net: Net, parts: Parts, down: Parts) -> Parts:
        """What a client sends after its last step."""
        return pick(parts, self.up)

    def aggregate(self, net: Net, server: Parts, up: Parts, cohort: Cohort) -> Parts:
        """The server's parts after a round; `up` is stacked over the cohort."""
        return {**server, **averaging.mean(up, averaging.weights(cohort, self.weighting))}

    def settle(self, net: Net, server: Parts, images: Tensor) -> Parts:
        """The server's parts at the end of a round, in sight of the images that carry its labels."""
        return server

    def models(self, server: Parts) -> dict[str, Params]:
        """The nets that are tested, by name; the first is the one a run hands out."""
        return {"global": server["net"]}

    def local_model(self, up: Parts, kept: Parts) -> Params | None:
        """A client's own net after its visit, where its mean score over the cohort is wanted."""
        return None

    def own_model(self, server: Parts, up: Parts) -> Params | None:
        """The net that a client has sent, on top of what it received: tested with train.test_clients."""
        whole = {
            name: part.fill(otherwise=server[name]) if isinstance(part, Partial) else part for name, part in up.items()
        }
        return next(iter(self.models({**server, **whole}).values()), None)
