"""FedSiam (Long et al., "FedSiam: Towards Adaptive Federated Semi-Supervised Learning", 2020).

    online and target net at every trainee; a batch mixes labelled and unlabelled images, each in two views
    loss   = cross-entropy(online(view 1), y) of labelled rows
           + beta * distance(online(view 1), target(view 2)) over all rows     beta ramps up with own epochs
    step   : online by gradient; target <- alpha target + (1 - alpha) online   alpha grows with own epochs
    Pi     : no target net; view 2 goes through the online net itself (NoSiam of the ablation)
    MT     : both nets are sent both ways and averaged
    D      : for phi rounds alpha = 0 and only the target is sent; then an online layer is sent if |target - online| /
             |online| reaches the (1 - tau)-quantile of the last rounds, and else filled from its client's target
    tau    : linear 2 (1-mu) R (R - r) / (R - phi)^2 after phi; rectangle (1-mu) R / (end - phi) until end; at most 1

Differs from the authors' code: with labels at the server clients learn from their own data (there from the server's
last batch, and D throws the trained nets away); online and target start equal; the quantile is over layers, one value
each, of rounds after phi; images are ordered anew each epoch. Kept: cross-entropy is divided by all rows (by the few
labelled it did not train: 11% on MNIST), so with few labels set `share`, `divide`; these stand three times an epoch.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from semifed.batch import Batch, Clock, Pool
from semifed.methods import averaging
from semifed.methods.base import Cohort, Descend, Follow, Method, Move, Terms
from semifed.methods.losses import cross_entropies, distance, masked_mean
from semifed.methods.schedules import growing_decay, own_epochs, own_steps, ramp_up
from semifed.methods.selection import NEVER, boundary, divergence, linear, rectangle, remember
from semifed.nets.net import Net, Pass
from semifed.params import Params, Parts, layer
from semifed.payload import Partial
from semifed.settings import option


@dataclass(frozen=True)
class FedSiamPi(Method):
    """One net, two views of every image."""

    title: ClassVar[str] = "FedSiam-Pi: two views through one net (Long et al. 2020)"
    down: ClassVar[tuple[str, ...]] = ("online",)
    up: ClassVar[tuple[str, ...]] = ("online",)

    distance: Literal["mse", "kl"] = option("mse", "how far two predictions are apart")
    ramp: float = option(10.0, "own epochs until the consistency term has its full weight", above=0)
    weight: float = option(1.0, "full weight of the consistency term", least=0)
    repeat: int = option(3, "how often each labelled sample stands in an epoch", least=1)
    share: float = option(0.0, "least share of labelled rows; labelled ones are repeated to reach it", least=0, below=1)

    divide: Literal["all", "labelled"] = option("all", "by which rows of a batch the cross-entropy is divided")

    def init(self, net: Net, key: int) -> Parts:
        return {"online": net.init(key)}

    def reads(self) -> dict[str, Pool]:
        return {"images": Pool("all", ("weak", "weak"), self.repeat, self.share)}

    def server_reads(self) -> dict[str, Pool]:
        return {"images": Pool("all", ("weak", "weak"), 1, self.share)}

    def client(self) -> tuple[Move, ...]:
        return (Descend(("online",), self.loss),)

    server = client

    def loss(self, net: Pass, parts: Parts, batch: Batch) -> Terms:
        rows = batch.rows("images")
        logits = net(parts["online"], rows.views[0], rows.real)
        by = rows.real if self.divide == "all" else rows.labelled
        with torch.no_grad():
            aim = net(parts.get("target") or parts["online"], rows.views[1], rows.real).softmax(-1)
        net.note_agreement(logits, [aim], rows.real)
        beta = self.weight * ramp_up(own_epochs(batch.clock), self.ramp)
        return {
            "cross_entropy": masked_mean(cross_entropies(logits, rows.y) * rows.labelled, by),
            "consistency": beta * masked_mean(distance(self.distance, aim, logits), rows.real),
        }

    def models(self, server: Parts) -> dict[str, Params]:
        return {name: server[name] for name in ("online", "target") if name in server}


@dataclass(frozen=True)
class FedSiamMT(FedSiamPi):
    """The target is a moving average of the online net, and both are exchanged."""

    title: ClassVar[str] = "FedSiam-MT: online and target net, both exchanged (Long et al. 2020)"
    down: ClassVar[tuple[str, ...]] = ("online", "target")
    up: ClassVar[tuple[str, ...]] = ("online", "target")

    alpha: float = option(0.999, "largest decay of the target", least=0, below=1)

    def init(self, net: Net, key: int) -> Parts:
        return {"online": net.init(key), "target": net.init(key)}

    def client(self) -> tuple[Move, ...]:
        return (Descend(("online",), self.loss), Follow("target", ("online",), self.decay))

    def server(self) -> tuple[Move, ...]:
        return (Descend(("online",), self.loss), Follow("target", ("online",), self.server_decay))

    def decay(self, clock: Clock) -> Tensor:
        return growing_decay(own_epochs(clock), self.alpha)

    def server_decay(self, clock: Clock) -> Tensor:
        return growing_decay(own_steps(clock), self.alpha)


@dataclass(frozen=True)
class FedSiamD(FedSiamMT):
    """Of the online net only the layers that diverge most from the target are sent."""

    leaves: ClassVar[str] = "The target net, some online layers, and how much the client's data pull at each layer."
    title: ClassVar[str] = "FedSiam-D: of the online net only diverging layers are sent (Long et al. 2020)"
    not_private: ClassVar[str] = "which layers a client sends, and how far they diverge, depend on its data."
    down: ClassVar[tuple[str, ...]] = ("online", "target", "boundary")
    up: ClassVar[tuple[str, ...]] = ("online", "target", "divergence")
    by_layer: ClassVar[tuple[str, ...]] = ("divergence",)

    mu: float = option(0.5, "share of the online net's layers to withhold over the run", least=0, most=1)
    curve: Literal["linear", "rectangle"] = option("linear", "how the share of sent layers goes over rounds")
    phi: int = option(3, "rounds at the start in which only the target is sent (10 with rectangle)", least=0)
    end: int = option(40, "round at which the rectangle ends", least=1)
    window: int = option(10, "rounds whose divergences set the boundary", least=1)

    def init(self, net: Net, key: int) -> Parts:
        none = {"values": torch.zeros(0), "rounds": torch.zeros(0, dtype=torch.int64)}
        return super().init(net, key) | {"boundary": torch.tensor(NEVER if self.phi else 0.0), "divergences": none}

    def decay(self, clock: Clock) -> Tensor:
        return super().decay(clock) * (clock.round >= self.phi)

    def upload(self, net: Net, parts: Parts, down: Parts) -> Parts:
        far = divergence(net.weights(parts["online"]), parts["target"])
        sent = {name: far[layer(name)] >= down["boundary"] for name in parts["online"]}
        return {"online": Partial(parts["online"], sent), "target": parts["target"], "divergence": far}

    def aggregate(self, net: Net, server: Parts, up: Parts, cohort: Cohort) -> Parts:
        weights, online = averaging.weights(cohort, self.weighting), up["online"].fill(otherwise=up["target"])
        far = torch.cat(list(up["divergence"].values()))
        seen = remember(server["divergences"], far, cohort.round, self.window, self.phi)
        line = boundary(seen["values"], self.tau(cohort.round + 2, cohort.rounds))
        merged = averaging.mean({"online": online, "target": up["target"]}, weights)
        return {**merged, "divergences": seen, "boundary": line}

    def tau(self, r: int, rounds: int) -> float:
        """The share of layers to send in round r, counted from 1."""
        linearly = linear(r, rounds, 1 - self.mu, self.phi)
        return linearly if self.curve == "linear" else rectangle(r, rounds, 1 - self.mu, self.phi, self.end)
