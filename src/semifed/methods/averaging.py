"""How uploads become one: means over the clients' axis of stacked trees."""

from typing import Any, Literal

import torch
from torch import Tensor

from semifed.params import tree_map


def weights(examples: Tensor, weighting: Literal["examples", "uniform"]) -> Tensor:
    """A weight a client, summing to 1; a client that had nothing to read weighs nothing."""
    raw = examples.double() if weighting == "examples" else (examples > 0).double()
    return raw / raw.sum()


def mean(stacked: Any, weight: Tensor) -> Any:
    """Weighted mean over the clients; counters, being integers, are not averaged: the largest is taken."""
    return tree_map(lambda tensor: _mean_leaf(tensor, weight), stacked)


def _mean_leaf(tensor: Tensor, weight: Tensor) -> Tensor:
    if not tensor.is_floating_point():
        return tensor.amax(0)
    merged: Tensor = torch.tensordot(weight.to(tensor), tensor, dims=1)
    return merged
