"""The stream of batches of one visit: which samples stand in which step, drawn from the visit's key alone.

Clients differ in how much they hold; a cohort is padded to one shape, and padding is marked, never counted.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from semifed import keys
from semifed.batch import Batch, Clock, Pool, Samples
from semifed.data.views import View
from semifed.training import Training


class Supply(NamedTuple):
    """What one trainee holds: places in the data set, and the labels of the labelled ones alone."""

    labelled: Tensor  # int64 [n]
    y: Tensor  # int64 [n]
    unlabelled: Tensor  # int64 [m]


class Rows(NamedTuple):
    """The samples of one pool over a whole visit, each [steps, rows]."""

    place: Tensor  # in the data set
    y: Tensor  # -1 without a label
    real: Tensor


class Plan(NamedTuple):
    """A visit: its pools, the epoch of every step, and how many different samples it reads."""

    pools: dict[str, Rows]
    epoch: Tensor  # int64 [steps]
    examples: int
    key: int

    @property
    def steps(self) -> int:
        return len(self.epoch)


def plan(pools: Mapping[str, Pool], supply: Supply, training: Training, key: int) -> Plan:
    """Lay out a visit; the first pool that holds anything sets the length of an epoch, the others go round."""
    entries = {name: _entries(pool, supply) for name, pool in pools.items()}
    sizes = {
        name: training.unlabelled_batch if pool.holds == "unlabelled" else training.batch
        for name, pool in pools.items()
    }
    leader = next((name for name, (index, _) in entries.items() if len(index)), None)
    if leader is None:
        return Plan({name: _no_rows(0) for name in pools}, torch.zeros(0, dtype=torch.int64), 0, key)
    count = len(entries[leader][0])
    size = sizes[leader] = min(sizes[leader], count)  # a batch of "all there is" may be given as any large number
    # The only batch of an epoch is as long as what there is, so it is never dropped: a small client trains too.
    an_epoch = count // size if training.drop_last else -(-count // size)
    steps = min(training.epochs * an_epoch, training.steps or training.epochs * an_epoch)
    rows = {}
    for number, (name, (index, y)) in enumerate(entries.items()):
        own = keys.key(key, "order", number)
        if not len(index):
            rows[name] = _no_rows(steps)
        elif name == leader:
            rows[name] = _epochs(index, y, steps, an_epoch, sizes[name], own)
        else:
            rows[name] = _cycle(index, y, steps, sizes[name], own)
    read = torch.cat([index for index, _ in entries.values()])
    return Plan(rows, torch.arange(steps) // an_epoch, len(set(read.tolist())), key)


def _entries(pool: Pool, supply: Supply) -> tuple[Tensor, Tensor]:
    """The samples of a pool with their labels, labelled ones as often as the pool repeats them."""
    unlabelled = supply.unlabelled if pool.holds != "labelled" else supply.unlabelled[:0]
    labelled, y = supply.labelled, supply.y
    if pool.holds == "unlabelled":
        labelled, y = labelled[:0], y[:0]
    blank = torch.full_like(unlabelled, -1)
    return torch.cat([labelled.repeat(pool.repeat), unlabelled]), torch.cat([y.repeat(pool.repeat), blank])


def _no_rows(steps: int) -> Rows:
    index = torch.zeros(steps, 0, dtype=torch.int64)
    return Rows(index, index, index.bool())


def _epochs(index: Tensor, y: Tensor, steps: int, an_epoch: int, size: int, key: int) -> Rows:
    """Every sample once an epoch, in an order of that epoch; the last batch of an epoch may have padding."""
    orders = []
    for epoch in range(-(-steps // an_epoch)):
        order = keys.permutation(keys.key(key, epoch), len(index))[: an_epoch * size]
        orders.append(F.pad(order, (0, an_epoch * size - len(order)), value=-1))
    order = torch.cat(orders)[: steps * size].reshape(steps, size)
    real = order >= 0
    return Rows(index[order] * real, torch.where(real, y[order], -1), real)


def _cycle(index: Tensor, y: Tensor, steps: int, size: int, key: int) -> Rows:
    """As many rows as are asked for, going round the samples in a new order each time."""
    rounds = -(-steps * size // len(index))
    order = torch.cat([keys.permutation(keys.key(key, number), len(index)) for number in range(rounds)])
    order = order[: steps * size].reshape(steps, size)
    return Rows(index[order], y[order], torch.ones_like(order, dtype=torch.bool))


class Stream:
    """The batches of several visits in lock-step, as tensors with a leading axis of trainees."""

    def __init__(
        self, plans: Sequence[Plan], pools: Mapping[str, Pool], images: Tensor, views: Mapping[str, View]
    ) -> None:
        self._images, self._views = images, views
        self._pools = pools
        self.steps = max(visit.steps for visit in plans)
        self.lengths = torch.tensor([visit.steps for visit in plans], device=images.device)
        self._rows = {name: self._together([visit.pools[name] for visit in plans]) for name in pools}
        epochs = [F.pad(visit.epoch, (0, self.steps - visit.steps)) for visit in plans]
        self._epochs = torch.stack(epochs)
        self._keys = torch.tensor([keys.key(visit.key, "views") for visit in plans])

    def _together(self, visits: Sequence[Rows]) -> Rows:
        """Pad the visits to the same number of steps and rows; rows that no visit ever fills are left out."""
        filled = max((int(rows.real.sum(1).max()) if len(rows.real) else 0) for rows in visits)

        def pad(tensor: Tensor, missing: int, value: int) -> Tensor:
            kept = tensor[:, :filled]
            return F.pad(kept, (0, filled - kept.shape[1], 0, missing), value=value)

        return Rows(
            torch.stack([pad(rows.place, self.steps - len(rows.real), 0) for rows in visits]),
            torch.stack([pad(rows.y, self.steps - len(rows.real), -1) for rows in visits]),
            torch.stack([pad(rows.real, self.steps - len(rows.real), 0) for rows in visits]),
        )

    def active(self, step: int) -> Tensor | None:
        """Which visits still run at this step; None if all do."""
        running = step < self.lengths
        return None if bool(running.all()) else running

    def batch(self, step: int, round: int, rounds: int, visits: Tensor) -> Batch:
        """The rows of one step in all views they are read in."""
        keys_now = keys.fold(self._keys, step)
        pools = {
            name: self._samples(self._rows[name], step, pool.views, keys.fold(keys_now, number))
            for number, (name, pool) in enumerate(self._pools.items())
        }
        device, count = self._images.device, len(self._keys)
        clock = Clock(
            torch.full((count,), round, device=device),
            torch.full((count,), rounds, device=device),
            visits.to(device),
            self._epochs[:, step].to(device),
            self._epochs.amax(1).to(device) + 1,
            torch.full((count,), step, device=device),
            self.lengths,
        )
        return Batch(pools, clock)

    def _samples(self, rows: Rows, step: int, names: tuple[str, ...], own_keys: Tensor) -> Samples:
        device = self._images.device
        index = rows.place[:, step]
        images = self._images[index.flatten().to(device)]
        row_keys = keys.fold(own_keys[:, None], torch.arange(index.shape[1])).flatten().to(device)
        views = [self._views[name](images, keys.fold(row_keys, number)) for number, name in enumerate(names)]
        shaped = tuple(view.reshape(*index.shape, *view.shape[1:]) for view in views)
        return Samples(shaped, rows.y[:, step].to(device), rows.real[:, step].to(device))
