"""Which clients help which: what the FedMatch server remembers of its clients, and whom it chooses."""

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from semifed import keys
from semifed.methods.base import Cohort
from semifed.nets.net import Net
from semifed.params import Params, at, stack
from semifed.payload import Partial

Memory = dict[str, Any]
"""`best`: psi of the best clients of the last round, stacked, and whether there are any. `seen`: the last psi of every
client by id, and `places`: where its model lies, as the output on a noise image."""


def empty(psi: Params, count: int) -> Memory:
    """Nothing remembered yet."""
    nobody = stack([psi] * count) if count else {}
    return {"best": nobody, "ready": torch.tensor(False), "seen": {}, "places": {}}


def accuracies(net: Net, models: Sequence[Params], validation: tuple[Tensor, Tensor] | None) -> Tensor:
    """Each model's accuracy on the server's validation set; all the same where there is none."""
    if validation is None:
        return torch.ones(len(models))
    images, labels = validation
    right = [(net.evaluate(model, images).argmax(-1) == labels).float().mean() for model in models]
    return torch.stack(right).clamp(min=1e-6)


def remember(
    net: Net,
    choice: Literal["accuracy", "embedding"],
    memory: Memory,
    models: Sequence[Params],
    psi: Params,
    cohort: Cohort,
    scores: Tensor,
    count: int,
) -> Memory:
    """What the next rounds need of this one's clients."""
    if not count:
        return memory
    if choice == "accuracy":
        enough = len(models) >= count
        ranked = sorted(range(len(models)), key=lambda place: (-float(scores[place]), cohort.clients[place]))
        top = ranked[:count] if enough else []
        best = stack([at(psi, place) for place in top]) if enough else memory["best"]
        return {**memory, "best": best, "ready": torch.tensor(enough)}
    noise = _noise(net)
    names = [str(client) for client in cohort.clients]
    seen = {name: at(psi, place) for place, name in enumerate(names)}
    places = {name: net.evaluate(model, noise)[0].softmax(-1) for name, model in zip(names, models, strict=True)}
    return {**memory, "seen": memory["seen"] | seen, "places": memory["places"] | places}


def choose(memory: Memory, client: int, count: int, wanted: bool) -> Partial:
    """The helpers of one client, of a fixed number; withheld where none are wanted or not enough are known."""
    name = str(client)
    others = [other for other in memory["places"] if other != name]
    if wanted and bool(memory["ready"]):
        return _all(memory["best"], True)
    if wanted and name in memory["places"] and len(others) >= count:
        own = memory["places"][name]
        near = sorted(others, key=lambda other: (float((memory["places"][other] - own).norm()), int(other)))
        return _all(stack([memory["seen"][other] for other in near[:count]]), True)
    return _all(memory["best"], False)


def _all(values: Params, sent: bool) -> Partial:
    return Partial(values, {name: torch.tensor(sent) for name in values})


def _noise(net: Net) -> Tensor:
    """One image of noise, always the same."""
    pixels = keys.uniform(torch.tensor(keys.key("noise image")), math.prod(net.shape))
    return 4 * pixels.reshape(1, *net.shape) - 2
