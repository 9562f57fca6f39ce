"""What happens layer by layer: how much of each the clients have sent, and what a method measures there."""

from collections.abc import Sequence

import numpy as np

from semifed.methods.base import Method
from semifed.params import Parts, layer
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


def _shares(up: Parts) -> Layers:
    return {f"{part} sent": _share(branch) for part, branch in up.items() if isinstance(branch, Partial)}


def _share(part: Partial) -> dict[str, float]:
    """How much of every layer is sent, over all its tensors."""
    sent, held = dict[str, float](), dict[str, float]()
    for name, value in part.values.items():
        mask, own = part.sent[name], layer(name)
        each = value.numel() / max(mask.numel(), 1)
        sent[own] = sent.get(own, 0.0) + float(mask.sum()) * each
        held[own] = held.get(own, 0.0) + value.numel()
    return {name: share / max(held[name], 1) for name, share in sent.items()}


def _measures(method: Method, up: Parts) -> Layers:
    return {part: {name: float(value) for name, value in up[part].items()} for part in method.by_layer}
