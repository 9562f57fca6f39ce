"""Quantities that change over training, as functions of the clock; all work on tensors, also under `vmap`."""

import torch
from torch import Tensor

from semifed.batch import Clock
from semifed.params import Params


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


def full_speed() -> Params:
    """What is known of the validation loss before the first round."""
    return {"pace": torch.tensor(1.0), "best": torch.tensor(torch.finfo().max), "waited": torch.tensor(0)}


def slow_down(plateau: Params, loss: Tensor, patience: int) -> Params:
    """Divide the pace of learning by 3 after `patience` rounds without a better loss."""
    waited = torch.where(loss < plateau["best"], 0, plateau["waited"] + 1)
    tired = waited >= patience
    pace = torch.where(tired, plateau["pace"] / 3, plateau["pace"])
    return {"pace": pace, "best": torch.minimum(loss, plateau["best"]), "waited": torch.where(tired, 0, waited)}
