"""Which layers to send: how far two nets are apart layer by layer, and where to draw the line (FedSiam, 3.3)."""

import torch
from torch import Tensor

from semifed.params import Params, layer

NEVER = torch.finfo(torch.float32).max
"""A boundary that no divergence reaches."""


def divergence(online: Params, target: Params) -> Params:
    """|target - online| / |online| of each layer, weight and bias together."""
    layers: dict[str, list[str]] = {}
    for name in online:
        layers.setdefault(layer(name), []).append(name)
    return {one: _ratio([(target[name], online[name]) for name in names]) for one, names in layers.items()}


def _ratio(pairs: list[tuple[Tensor, Tensor]]) -> Tensor:
    moved = sum(((target - online).square().sum() for target, online in pairs), torch.zeros(()))
    size = sum((online.square().sum() for _, online in pairs), torch.zeros(()))
    return (moved / size.clamp(min=1e-24)).sqrt()


def boundary(values: Tensor, tau: float) -> Tensor:
    """What a layer's divergence must reach to be sent: the (1 - tau)-quantile; all are sent if nothing is known."""
    if tau <= 0:
        return torch.tensor(NEVER)
    if not len(values):
        return torch.tensor(0.0)
    place = min(int((1 - tau) * len(values)), len(values) - 1)
    return values.sort().values[place]


def remember(seen: Params, values: Tensor, round: int, window: int, phi: int) -> Params:
    """The divergences of the last `window` rounds; those of the first phi rounds are 0 by force and left out."""
    values = values.sort().values
    rounds = torch.cat([seen["rounds"], torch.full((len(values),), round, device=values.device)])
    recent = (rounds > round - window) & (rounds >= phi)
    return {"values": torch.cat([seen["values"], values])[recent], "rounds": rounds[recent]}


def linear(r: int, rounds: int, share: float, phi: int) -> float:
    """From its largest value after round phi straight down to 0 in the last round, `share` on average; at most 1."""
    if not phi < r < rounds:
        return 0.0
    return min(2 * share * rounds * (rounds - r) / (rounds - phi) ** 2, 1.0)


def rectangle(r: int, rounds: int, share: float, phi: int, end: int) -> float:
    """One level between the rounds phi and end, `share` on average over the run; at most 1."""
    return min(share * rounds / max(end - phi, 1), 1.0) if phi < r < end else 0.0
