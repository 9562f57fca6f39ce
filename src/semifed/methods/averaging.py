"""How uploads become one: weights of the clients, and means over their axis of stacked trees."""

from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from semifed.params import tree_map

if TYPE_CHECKING:
    from semifed.methods.base import Cohort

Weighting = Literal["examples", "uniform", "frequency"]


def weights(cohort: "Cohort", weighting: Weighting) -> Tensor:
    """A weight a client, summing to 1; a client that had nothing to read weighs nothing."""
    busy = cohort.examples > 0
    if weighting == "examples":
        raw = cohort.examples.double()
    elif weighting == "frequency":
        raw = frequency_weights(cohort.visits * busy) * busy
    else:
        raw = busy.double()
    return raw / raw.sum()


def frequency_weights(visits: Tensor) -> Tensor:
    """FedFreq (FedMix paper): who has taken part more often weighs less, (1 - q_k / sum q) / (clients - 1).

    Visits count the present one, so a first visit is 1. One client alone has the weight 1.
    """
    share = visits.double() / visits.sum()
    clients = int((visits > 0).sum())
    return torch.ones_like(share) if clients == 1 else (1 - share) / (clients - 1)


def mean(stacked: Any, weight: Tensor) -> Any:
    """Weighted mean over the clients; counters, being integers, are not averaged: the largest is taken."""
    return tree_map(lambda tensor: _mean_leaf(tensor, weight), stacked)


def _mean_leaf(tensor: Tensor, weight: Tensor) -> Tensor:
    if not tensor.is_floating_point():
        return tensor.amax(0)
    merged: Tensor = torch.tensordot(weight.to(tensor), tensor, dims=1)
    return merged
