"""Uploads as what they are measured from and an update on top of it: taken apart, and put together again."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from semifed.params import expand_as
from semifed.payload import Partial


def updates(up: Any, idle: Any) -> Iterator[Tensor]:
    """The stacked update of every floating tensor; what a client withholds has not moved."""
    if isinstance(up, Partial):
        for name, value in up.values.items():
            if value.is_floating_point():
                yield torch.where(expand_as(up.sent[name], value), value - idle.values[name], 0)
    elif isinstance(up, Mapping):
        for name in up:
            yield from updates(up[name], idle[name])
    elif up.is_floating_point():
        yield up - idle


def with_update(up: Any, idle: Any, found: Iterator[Tensor], places: Tensor) -> Any:
    """Uploads whose clients at these places have all moved by the same; of counters they have the middle one."""
    if isinstance(up, Partial):
        return Partial(with_update(up.values, idle.values, found, places), up.sent)
    if isinstance(up, Mapping):
        return {name: with_update(up[name], idle[name], found, places) for name in up}
    if up.dtype is torch.bool:
        return up
    made = up.clone()
    made[places] = idle[places] + next(found) if up.is_floating_point() else up[places].median(0).values
    return made
