"""What one local step sees: rows of images in one or more views, their labels where there are any, and the time."""

from typing import Literal, NamedTuple

from torch import Tensor


class Pool(NamedTuple):
    """Samples that a step reads: which ones and in which views; how often a labelled one stands in an epoch.

    Where labels are few, `share` repeats the labelled ones until they make up that share of the pool.
    """

    holds: Literal["labelled", "unlabelled", "all"]
    views: tuple[str, ...]
    repeat: int = 1
    share: float = 0.0


class Clock(NamedTuple):
    """When a step happens; schedules are functions of it. All entries are 0-d tensors."""

    round: Tensor  # from 0
    rounds: Tensor  # how many the run has
    visit: Tensor  # how often this client has taken part, the present visit included; at the server the round + 1
    epoch: Tensor  # local epoch, from 0
    epochs: Tensor  # how many a visit has
    step: Tensor  # local step, from 0
    steps: Tensor  # how many this visit has


class Samples(NamedTuple):
    """Some rows of a step. A row that is padding is not `real`; a row without a label has y = -1."""

    views: tuple[Tensor, ...]  # each [rows, channels, height, width], in the order the method asked for
    y: Tensor  # int64 [rows]
    real: Tensor  # bool [rows]

    @property
    def labelled(self) -> Tensor:
        """Which rows are real and carry a label."""
        return self.real & (self.y >= 0)


class Batch(NamedTuple):
    """The rows of one step by the name of the pool they come from, and the clock."""

    pools: dict[str, Samples]
    clock: Clock

    def rows(self, pool: str) -> Samples:
        """The rows of one pool; a pool that nobody holds has no rows."""
        return self.pools[pool]
