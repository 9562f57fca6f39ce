"""What happens layer by layer: how much of each the clients have sent, and what a method measures there."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from semifed.methods.base import Method
from semifed.params import Parts, layer, leaves
from semifed.payload import Partial

Layers = dict[str, dict[str, float]]
"""By what is measured and by layer: the mean over the clients of a round."""


def by_layer(method: Method, ups: Sequence[Parts]) -> Layers:
    """The share of each layer that was sent where parts may be withheld, and the method's own measures."""
    found = [_shares(up) | _measures(method, up) for up in ups]
    return {
        what: {name: float(np.mean([one[what][name] for one in found])) for name in own}
        for what, own in (found[0] if found else {}).items()
    }


def share_sent(method: Method, ups: Sequence[Parts]) -> float:
    """How much clients have sent of all they could; a method withholds some of it, or nothing."""
    parts = [branch for up in ups for name, branch in up.items() if name not in method.by_layer]
    partial = [count for branch in parts if isinstance(branch, Partial) for count in _counts(branch).values()]
    whole = sum(leaf.numel() for branch in parts if not isinstance(branch, Partial) for leaf in leaves(branch))
    held = whole + sum(count.held for count in partial)
    return (whole + sum(count.sent for count in partial)) / held if held else 1.0


def _shares(up: Parts) -> Layers:
    return {f"{part} sent": _share(branch) for part, branch in up.items() if isinstance(branch, Partial)}


def _share(part: Partial) -> dict[str, float]:
    """How much of every layer is sent, over all its tensors."""
    return {name: count.sent / max(count.held, 1) for name, count in _counts(part).items()}


class _Count(NamedTuple):
    """Of how many numbers how many are sent."""

    sent: float
    held: int


def _counts(part: Partial) -> dict[str, _Count]:
    """The numbers of every layer, over all its tensors."""
    counts = dict[str, _Count]()
    for name, value in part.values.items():
        mask, before = part.sent[name], counts.get(layer(name), _Count(0.0, 0))
        each = value.numel() / max(mask.numel(), 1)
        counts[layer(name)] = _Count(before.sent + float(mask.sum()) * each, before.held + value.numel())
    return counts


def _measures(method: Method, up: Parts) -> Layers:
    return {part: {name: float(value) for name, value in up[part].items()} for part in method.by_layer}
