"""Quantities that change over training, as functions of the clock; all work on tensors, also under `vmap`."""

import torch
from torch import Tensor

from semifed.batch import Clock


def own_epochs(clock: Clock) -> Tensor:
    """The trainee's own time in local epochs, as the FedSiam authors count it: the first visit starts at one visit."""
    return clock.epochs * clock.visit + clock.epoch + 1


def own_steps(clock: Clock) -> Tensor:
    """The trainee's own time in steps, from 0."""
    return clock.steps * (clock.visit - 1) + clock.step


def ramp_up(time: Tensor, length: float) -> Tensor:
    """From near 0 to 1 over `length`, along exp(-5 (1 - t)^2)."""
    done = (time / length).clamp(0, 1)
    return torch.exp(-5 * (1 - done) ** 2)


def growing_decay(time: Tensor, cap: float) -> Tensor:
    """The decay of a moving average that at first forgets quickly: 1 - 1 / (time + 1), up to a cap."""
    return (1 - 1 / (time + 1)).clamp(max=cap)
