"""FedCon (Long et al., "FedCon: A Contrastive Framework for Federated Semi-Supervised Learning", 2021).

    backbone b is shared; the head f stays at the server, a projector P and a target backbone stay at each client
    server : views x1, x2 of its images; online c = f(b(x)), target u = its moving average on the other view
             loss = mean of both cross-entropies on labelled rows
                  + beta * mean of both |softmax(c) - softmax(u)|^2 on all rows       symmetrised
             target <- tau target + (1 - tau) online
    client : loss = mean of both normalised |P(b(x1)) - target(x2)|^2 = 2 - 2 cos     symmetrised
             target <- mu target + (1 - mu) b
    server : b <- mean of the clients' backbones

Differs from the authors' code: the server's aims come from the moving average (there it is never used) and the
distance is the paper's squared one (there KL); projector and target are kept by client id (there by
batch index, one slot for all); clients descend with the optimiser of [client] (there LARS whose rate is near zero
in every visit: clients learn nothing). The projector is `width` wide, 64 by default, so that the state of
100 clients stays small; 12288 is the authors' (the paper says 320). beta ramps up over `ramp` rounds as in the code.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from semifed import keys
from semifed.batch import Batch, Pool
from semifed.methods.base import Descend, Follow, Method, Move, Terms
from semifed.methods.losses import cross_entropy, masked_mean, normalise_rows
from semifed.methods.schedules import ramp_up
from semifed.nets.net import Net, Pass
from semifed.params import Params, Parts
from semifed.settings import option


@dataclass(frozen=True)
class FedCon(Method):
    """Contrast between views at the clients, classification at the server."""

    title: ClassVar[str] = "FedCon: shared backbone, head at the server, projector at the client (Long et al. 2021)"
    leaves: ClassVar[str] = (
        "The backbone, trained without labels; no head or class output leaves a client. Images may be guessed from "
        "its change after few steps."
    )
    labels: ClassVar[tuple[str, ...]] = ("server",)
    down: ClassVar[tuple[str, ...]] = ("backbone",)
    up: ClassVar[tuple[str, ...]] = ("backbone",)
    keeps: ClassVar[tuple[str, ...]] = ("projector", "target")

    width: int = option(64, "hidden units of the projector (320 in the paper, 12288 in the authors' code)", least=1)
    tau: float = option(0.999, "decay of the server's target", least=0, below=1)
    mu: float = option(0.999, "decay of a client's target", least=0, below=1)
    beta: float = option(1.0, "weight of the server's consistency term", least=0)
    ramp: float = option(100.0, "rounds until that term has its full weight", above=0)

    def init(self, net: Net, key: int) -> Parts:
        backbone, head = net.split(net.init(key))
        return {"backbone": backbone, "head": head, "average": {**backbone, **head}}

    def reads(self) -> dict[str, Pool]:
        return {"unlabelled": Pool("unlabelled", ("weak", "weak"))}

    def server_reads(self) -> dict[str, Pool]:
        return {"labelled": Pool("labelled", ("weak", "weak")), "unlabelled": Pool("unlabelled", ("weak", "weak"))}

    def server(self) -> tuple[Move, ...]:
        follow = Follow("average", ("backbone", "head"), self.tau)
        return (Descend(("backbone", "head"), self.classify), follow)

    def client(self) -> tuple[Move, ...]:
        return (Descend(("backbone", "projector"), self.contrast), Follow("target", ("backbone",), self.mu))

    def classify(self, net: Pass, parts: Parts, batch: Batch) -> Terms:
        labelled, unlabelled = batch.rows("labelled"), batch.rows("unlabelled")
        real = torch.cat([labelled.real, unlabelled.real])
        views = [torch.cat(pair) for pair in zip(labelled.views, unlabelled.views, strict=True)]
        online = {**parts["backbone"], **parts["head"]}
        logits = [net(online, view, real) for view in views]
        with torch.no_grad():
            aims = [net(parts["average"], view, real).softmax(-1) for view in views]
        known, mask = len(labelled.y), labelled.labelled
        entropies = [cross_entropy(own[:known], labelled.y, mask) for own in logits]
        gaps = [(own.softmax(-1) - aim).square().sum(-1) for own, aim in zip(logits, reversed(aims), strict=True)]
        beta = self.beta * ramp_up(batch.clock.round, self.ramp)
        return {
            "cross_entropy": (entropies[0] + entropies[1]) / 2,
            "consistency": beta * masked_mean(gaps[0] + gaps[1], real) / 2,
        }

    def contrast(self, net: Pass, parts: Parts, batch: Batch) -> Terms:
        rows = batch.rows("unlabelled")
        own = [net.features(parts["backbone"], view, rows.real) for view in rows.views]
        projected = [project(parts["projector"], features, rows.real) for features in own]
        with torch.no_grad():
            aims = [net.features(parts["target"], view, rows.real) for view in rows.views]
        gaps = [2 - 2 * F.cosine_similarity(one, two) for one, two in zip(projected, reversed(aims), strict=True)]
        return {"contrast": masked_mean(gaps[0] + gaps[1], rows.real) / 2}

    def enroll(self, net: Net, down: Parts, key: int) -> Parts:
        return {"projector": first_projector(net.feature_width, self.width, key), "target": down["backbone"]}

    def models(self, server: Parts) -> dict[str, Params]:
        return {"online": {**server["backbone"], **server["head"]}, "target": server["average"]}


def project(projector: Params, features: Tensor, real: Tensor) -> Tensor:
    """Linear, batch normalisation over the real rows, ReLU, linear."""
    hidden = normalise_rows(F.linear(features, projector["in.weight"], projector["in.bias"]), real)
    hidden = F.relu(hidden * projector["norm.weight"] + projector["norm.bias"])
    return F.linear(hidden, projector["out.weight"], projector["out.bias"])


def first_projector(features: int, width: int, key: int) -> Params:
    """Random weights, uniform within one over the root of the inputs."""

    def uniform(name: str, inputs: int, *shape: int) -> Tensor:
        draws = keys.uniform(torch.tensor(keys.key(key, name)), math.prod(shape)).reshape(shape)
        return (2 * draws - 1).div(inputs**0.5)

    return {
        "in.weight": uniform("in.weight", features, width, features),
        "in.bias": uniform("in.bias", features, width),
        "norm.weight": torch.ones(width),
        "norm.bias": torch.zeros(width),
        "out.weight": uniform("out.weight", width, features, width),
        "out.bias": uniform("out.bias", width, features),
    }
