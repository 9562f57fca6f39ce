"""The stream of batches of one visit: which samples stand in which step, drawn from the visit's key alone.

Clients differ in how much they hold; a cohort is padded to one shape, and padding is marked, never counted.
"""

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from semifed import keys
from semifed.batch import Batch, Clock, Pool, Samples
from semifed.data.views import View
from semifed.training import Training

AT_ONCE = 1024
"""Images that are looked at together: enough to hide what an operation costs besides, few enough for the cache."""


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


class When(NamedTuple):
    """The round, how many there are, and how often each trainee has taken part."""

    round: int
    rounds: int
    visits: Sequence[int]


class Plan(NamedTuple):
    """A visit: its pools, the epoch of every step, and how many different samples its pools hold."""

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
    wanted = pool.share / (1 - pool.share) * len(unlabelled)
    repeat = max(pool.repeat, math.ceil(wanted / max(1, len(labelled))))
    return torch.cat([labelled.repeat(repeat), unlabelled]), torch.cat([y.repeat(repeat), blank])


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
        self,
        plans: Sequence[Plan],
        pools: Mapping[str, Pool],
        images: Tensor,
        views: Mapping[str, View],
        when: When,
    ) -> None:
        self._images, self._views = images, views
        self._pools = pools
        self.steps = max(visit.steps for visit in plans)
        self.lengths = torch.tensor([visit.steps for visit in plans], device=images.device)
        self._rows = {name: self._together([visit.pools[name] for visit in plans]) for name in pools}
        epochs = [F.pad(visit.epoch, (0, self.steps - visit.steps)) for visit in plans]
        self._epochs = torch.stack(epochs)
        self._keys = torch.tensor([keys.key(visit.key, "views") for visit in plans])
        self._shortest = min(visit.steps for visit in plans)
        self._span = max(1, AT_ONCE // max(1, sum(rows.place[:, :1].numel() for rows in self._rows.values())))
        self._ready: tuple[int, list[Batch]] | None = None
        self._when = when

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

    @cached_property
    def _clock(self) -> Clock:
        """The clock of the first step."""
        when, still, epochs = self._when, torch.zeros_like(self.lengths), self._epochs.to(self.lengths.device)
        visits = torch.tensor(when.visits, device=still.device)
        rounds = torch.full_like(still, when.rounds)
        return Clock(still + when.round, rounds, visits, epochs[:, 0], epochs.amax(1) + 1, still, self.lengths)

    def rows(self, pool: str) -> Rows | None:
        """The samples of a pool over all visits, each [trainees, steps, rows]; None if no such pool is read."""
        return self._rows.get(pool)

    def active(self, step: int) -> Tensor | None:
        """Which visits still run at this step; None if all do."""
        return None if step < self._shortest else step < self.lengths

    def batch(self, step: int) -> Batch:
        """The rows of one step in all views they are read in."""
        first = step - step % self._span
        if self._ready is None or self._ready[0] != first:
            self._ready = first, self._batches(first)
        return self._ready[1][step - first]

    def _batches(self, first: int) -> list[Batch]:
        """The batches of the next steps at once: a view of many small batches costs little more than of one."""
        steps = torch.arange(first, min(first + self._span, self.steps))
        own = keys.fold(self._keys, steps[:, None])
        pools = {
            name: self._samples(self._rows[name], steps, pool.views, keys.fold(own, number))
            for number, (name, pool) in enumerate(self._pools.items())
        }
        return [
            Batch(
                {name: samples[place] for name, samples in pools.items()},
                self._clock._replace(
                    epoch=self._epochs[:, int(step)].to(self.lengths.device),
                    step=torch.full_like(self.lengths, int(step)),
                ),
            )
            for place, step in enumerate(steps)
        ]

    def _samples(self, rows: Rows, steps: Tensor, names: tuple[str, ...], own_keys: Tensor) -> list[Samples]:
        device = self._images.device
        place, y, real = (table[:, steps].transpose(0, 1) for table in rows)
        images = self._images[place.flatten().to(device)]
        row_keys = keys.fold(own_keys[..., None], torch.arange(place.shape[2])).flatten().to(device)
        views = [self._views[name](images, keys.fold(row_keys, number)) for number, name in enumerate(names)]
        shaped = [view.reshape(*place.shape, *view.shape[1:]) for view in views]
        y, real = y.contiguous().to(device), real.contiguous().to(device)
        return [Samples(tuple(view[at] for view in shaped), y[at], real[at]) for at in range(len(steps))]
