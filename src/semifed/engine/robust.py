"""Rules that stand hostile clients: from the updates of a round to one.

Updates are lists of stacked tensors, one a parameter, clients along the first axis. Median and trimmed mean go by
single coordinates (Yin et al. 2018); the others give every client a factor: Krum, multi-Krum (Blanchard et al. 2017),
the geometric median (Pillutla et al. 2019), and FLTrust (Cao et al. 2021), which goes by an update of the server's own.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from semifed.trust import AggregateSettings

Updates = Sequence[Tensor]


def centre(rule: AggregateSettings, updates: Updates, own: Updates | None = None) -> tuple[list[Tensor], list[float]]:
    """One update out of all, and the factor of each client in it where the rule gives one."""
    if rule.rule == "median":
        return [median(one) for one in updates], []
    if rule.rule == "trimmed-mean":
        return [trimmed_mean(one, rule.hostile) for one in updates], []
    factors = _factors(rule, updates, own)
    return [torch.tensordot(factors.to(one), one, dims=1) for one in updates], factors.tolist()


def _factors(rule: AggregateSettings, updates: Updates, own: Updates | None) -> Tensor:
    count = len(updates[0])
    rules: dict[str, Callable[[], Tensor]] = {
        "mean": lambda: torch.full((count,), 1 / count, dtype=torch.float64),
        "krum": lambda: krum(products(updates), rule.hostile, 1),
        "multi-krum": lambda: krum(products(updates), rule.hostile, rule.chosen or count - rule.hostile - 2),
        "geometric-median": lambda: geometric_median(products(updates)),
        "fltrust": lambda: trust(updates, own or ()),
    }
    return rules[rule.rule]()


def median(updates: Tensor) -> Tensor:
    """The middle value of each coordinate; of an even number the mean of the two in the middle."""
    ordered = updates.sort(0).values
    middle = (len(updates) - 1) // 2
    return (ordered[middle] + ordered[len(updates) // 2]) / 2


def trimmed_mean(updates: Tensor, cut: int) -> Tensor:
    """The mean of each coordinate without its `cut` largest and smallest values."""
    return updates.sort(0).values[cut : len(updates) - cut].mean(0)


def products(updates: Updates) -> Tensor:
    """The inner product of every two clients' updates, in double precision."""
    flat = [one.reshape(len(one), -1).double() for one in updates]
    return sum((one @ one.T for one in flat), torch.zeros((), dtype=torch.float64, device=flat[0].device))


def krum(inner: Tensor, hostile: int, chosen: int) -> Tensor:
    """Equal factors for those whose clients - hostile - 2 nearest others are the nearest, 0 for the rest."""
    squares = inner.diagonal()
    apart = (squares[:, None] + squares - 2 * inner).clamp(min=0)
    apart.fill_diagonal_(torch.inf)
    near = apart.sort(1).values[:, : len(inner) - hostile - 2].sum(1)
    factors = torch.zeros_like(squares)
    factors[near.argsort(stable=True)[:chosen]] = 1 / chosen
    return factors


def geometric_median(inner: Tensor, steps: int = 100) -> Tensor:
    """Factors of the point whose distances to all updates have the least sum (Weiszfeld's steps)."""
    factors = torch.full((len(inner),), 1 / len(inner), dtype=inner.dtype, device=inner.device)
    smallest = 1e-12 * inner.diagonal().max().clamp(min=1e-30).sqrt()
    for _ in range(steps):
        squares = inner.diagonal() - 2 * inner @ factors + factors @ inner @ factors
        weights = 1 / squares.clamp(min=0).sqrt().clamp(min=float(smallest))
        new = weights / weights.sum()
        if bool((new - factors).abs().max() < 1e-10):
            break
        factors = new
    return factors


def trust(updates: Updates, own: Updates) -> Tensor:
    """FLTrust: each update by its cosine with the server's, none if below 0, and all as long as the server's."""
    flat, ours = torch.cat([_flat(one) for one in updates], 1), torch.cat([_flat(one) for one in own], 1)[0]
    lengths, length = flat.norm(dim=1).clamp(min=1e-30), ours.norm()
    scores: Tensor = (flat @ ours / (lengths * length.clamp(min=1e-30))).clamp(min=0)
    factors: Tensor = scores / scores.sum().clamp(min=1e-30) * length / lengths
    return factors


def _flat(stacked: Tensor) -> Tensor:
    return stacked.reshape(len(stacked), -1).double()
