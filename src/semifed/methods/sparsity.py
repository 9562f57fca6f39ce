"""Leaving out what is small: sparse parameters, and exchanges of what has moved (FedMatch)."""

import torch

from semifed.params import Params
from semifed.payload import Partial


def thinned(params: Params, least: float) -> Params:
    """Entries that are not larger than `least` as zeros."""
    return {name: torch.where(value.abs() > least, value, 0.0) for name, value in params.items()}


def zeros(params: Params) -> Params:
    """Zeros of the same shapes."""
    return {name: torch.zeros_like(value) for name, value in params.items()}


def moved(new: Params, old: Params, delta: float) -> Partial:
    """Of the new values only those that differ by more than delta are sent."""
    return Partial(new, {name: (value - old[name]).abs() > delta for name, value in new.items()})
