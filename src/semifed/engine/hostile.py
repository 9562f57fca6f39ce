"""Who is hostile in a simulation, and the data that hostile clients spoil."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from semifed import keys
from semifed.engine.local import Workshop
from semifed.experiment import Experiment


def hostile_clients(experiment: Experiment, active: Sequence[int]) -> list[int]:
    """Who is hostile: the clients that the experiment names, or a share of those that hold anything."""
    attack = experiment.attack
    if attack.kind == "none" or attack.clients:
        return sorted(set(attack.clients)) if attack.kind != "none" else []
    order = keys.permutation(keys.key(experiment.seed, "hostile"), len(active))
    return sorted(int(active[place]) for place in order[: round(attack.share * len(active))])


def told(experiment: Experiment, active: Sequence[int], cohort: Sequence[int]) -> dict[str, Any]:
    """What a round's row says of an attack: who of its clients is hostile."""
    if experiment.attack.kind == "none":
        return {}
    hostile = set(hostile_clients(experiment, active))
    return {"hostile": [client for client in cohort if client in hostile]}


def with_spoilt_data(workshop: Workshop, experiment: Experiment, classes: int) -> Workshop:
    """The same workshop, where hostile clients hold mirrored labels or poisoned images."""
    attack, scenario = experiment.attack, workshop.scenario
    if attack.kind not in ("label-flip", "poison"):
        return workshop
    hostile = hostile_clients(experiment, scenario.active().tolist())
    labels, images = workshop.labels.clone(), workshop.images
    images = images.clone() if attack.kind == "poison" else images
    for client in hostile:
        holding = scenario.clients[client]
        own = torch.tensor(holding.labelled), torch.tensor(holding.unlabelled)
        if attack.kind == "label-flip":
            known = torch.cat(own)[workshop.labels[torch.cat(own)] >= 0]
            labels[known] = classes - 1 - labels[known]
        else:
            key = keys.key(experiment.seed, "poison", client)
            images[own[1]] = _drawn_towards(images, own[1], workshop.labels, key, experiment)
    return dataclasses.replace(workshop, labels=labels, images=images)


def _drawn_towards(images: Tensor, own: Tensor, labels: Tensor, key: int, experiment: Experiment) -> Tensor:
    """A client's unlabelled images, some of them on the way to one of the target class (Carlini 2021)."""
    held, attack = images[own], experiment.attack
    aims = (labels[own] == attack.target).nonzero()[:, 0]
    if not len(aims):
        return held
    draws = keys.uniform(torch.tensor([key, ~key]), len(own))
    far = torch.where(draws[0] < attack.poisoned, draws[1], 0.0).reshape(-1, *[1] * (held.dim() - 1))
    mixed = held.float() + far.to(held.device) * (held[aims[0]].float() - held.float())
    return mixed.round().to(held.dtype) if not held.is_floating_point() else mixed.to(held.dtype)
