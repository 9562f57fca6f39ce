"""FedMatch (Jeong et al., "Federated Semi-Supervised Learning with Inter-Client Consistency", 2020; ICLR 2021).

    parameters theta = sigma + psi: sigma learns from labels, psi from unlabelled data, each with the other fixed
    labelled x   : sigma by  lambda_s * cross-entropy(theta(x), y)
    unlabelled u : psi   by  lambda_i * sum over helpers of KL(helper(u) || theta(u))       inter-client consistency
                           + lambda_a * cross-entropy(theta(strong view of u), label) on confident rows, the label
                             being the class with most votes of the own net and the helpers  agreement
                           + lambda_1 |psi|_1 + lambda_2 |sigma - psi|^2
    helper       : sigma + psi of another client: the H best on the server's validation set (first paper), or the
                   nearest by the output on a fixed noise image among all clients seen (later version), every
                   `every`-th round
    server       : where it holds labels it trains sigma; psi and sigma <- mean of the clients', weighted by their
                   accuracy on the validation set (first paper) or uniform (later version)
    exchange     : an entry of psi at most `sparse` in size is 0; sent is what moved more than `delta` (first paper: 0)
    learning rate: divided by 3 when the validation loss has not fallen for `patience` rounds

Differs from the authors' code: the released one is the later version only, uses helpers in every tenth round, never
weights by accuracy, takes KL as a mean over helpers and confident rows, and its L2 weight of 10 with lambda_a = 0.01
erases what psi learns. Defaults here are the first paper's but for delta. Sent entries of psi are the sparse ones. What
the server sends is counted whole, not against a client's old copy. Plateaus are found by the server, not by clients.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from semifed.batch import Batch, Clock, Pool
from semifed.methods import averaging, neighbours
from semifed.methods.base import Cohort, Descend, Method, Move, Terms, Visit
from semifed.methods.losses import cross_entropies, cross_entropy, kl, masked_mean, sq_dist, vote
from semifed.methods.schedules import full_speed, slow_down
from semifed.methods.sparsity import moved, thinned, zeros
from semifed.nets.net import Net, Pass
from semifed.params import Params, Parts, add, at, stack
from semifed.payload import Partial
from semifed.settings import option


@dataclass(frozen=True)
class FedMatch(Method):
    """Disjoint learning of sigma and psi, with helpers."""

    title: ClassVar[str] = "FedMatch: sigma + psi, helpers, agreement, sparse exchange (Jeong et al. 2020)"
    leaves: ClassVar[str] = "Changes of sigma and psi; as a helper, psi of one client reaches others, not only a mean."
    not_private: ClassVar[str] = "helpers are nets of single clients, and which entries are sent depends on their data."
    down: ClassVar[tuple[str, ...]] = ("sigma", "psi", "helpers", "plateau")
    up: ClassVar[tuple[str, ...]] = ("sigma", "psi")

    reliability: bool = option(True, "weigh a client by its accuracy on the validation set, not by `weighting`")
    choice: Literal["accuracy", "embedding"] = option("accuracy", "how helpers are chosen")
    count: int = option(2, "helpers of a client (H)", least=0)
    every: int = option(1, "rounds from one with helpers to the next (later version: 10)", least=1)
    threshold: float = option(0.75, "least probability of a pseudo-label (tau)", least=0, most=1)
    lambda_s: float = option(10.0, "weight of the supervised term", least=0)
    lambda_i: float = option(1.0, "weight of inter-client consistency (later version: 0.01 over H)", least=0)
    lambda_a: float = option(1.0, "weight of agreement (later version: 0.01)", least=0)
    lambda_1: float = option(0.0, "weight of |psi|_1: 0 for dense, about 0.01 for sparse", least=0)
    lambda_2: float = option(0.01, "weight of |sigma - psi|^2 (later version: 10)", least=0)
    sparse: float = option(5e-6, "an entry of psi that is not larger counts as 0", least=0)
    delta: float = option(5e-5, "an entry that moved less is not sent (first paper: 0; mind small rates)", least=0)
    patience: int = option(3, "rounds without a better validation loss until the learning rate falls", least=1)

    def needs_validation(self) -> bool:
        return self.reliability or (self.choice == "accuracy" and self.count > 0)

    def init(self, net: Net, key: int) -> Parts:
        sigma = net.init(key)
        psi = {name: 0.2 * value for name, value in net.weights(sigma).items()}
        return {"sigma": sigma, "psi": psi, "plateau": full_speed(), "memory": neighbours.empty(psi, self.count)}

    def reads(self) -> dict[str, Pool]:
        unlabelled = {"unlabelled": Pool("unlabelled", ("clean", "strong"))}
        return unlabelled | self.server_reads()

    def server_reads(self) -> dict[str, Pool]:
        return {"labelled": Pool("labelled", ("clean",))}

    def client(self) -> tuple[Move, ...]:
        return (Descend(("sigma",), self.supervised), Descend(("psi",), self.unsupervised))

    def server(self) -> tuple[Move, ...]:
        return (Descend(("sigma",), self.supervised),)

    def pace(self, parts: Parts, clock: Clock) -> Tensor:
        pace: Tensor = parts["plateau"]["pace"]
        return pace

    def supervised(self, net: Pass, parts: Parts, batch: Batch) -> Terms:
        rows = batch.rows("labelled")
        logits = net.only(rows.labelled, add(parts["sigma"], parts["psi"]), rows.views[0], rows.real)
        return {"cross_entropy": self.lambda_s * cross_entropy(logits, rows.y, rows.labelled)}

    def unsupervised(self, net: Pass, parts: Parts, batch: Batch) -> Terms:
        rows, sigma, psi = batch.rows("unlabelled"), parts["sigma"], parts["psi"]
        clean, strong = rows.views
        theta = add(sigma, psi)
        logits = net(theta, clean, rows.real)
        with torch.no_grad():
            nets = [add(sigma, at(parts["helpers"].values, place)) for place in range(self.count)]
            theirs = [net.evaluate(other, clean).softmax(-1) for other in nets]
            helped = next(iter(parts["helpers"].sent.values())).float() if nets else logits.new_zeros(())
            kept = rows.real & (logits.softmax(-1).amax(-1) >= self.threshold)
            label = vote(logits.softmax(-1), theirs, helped)
        net.note_labels(label, kept, rows.real, logits.shape[-1])
        net.note_agreement(logits, theirs, rows.real, helped)
        apart = sum((kl(other, logits) for other in theirs), logits.new_zeros(len(rows.y)))
        agreement = cross_entropies(net.only(kept, theta, strong, rows.real), label)
        terms = {
            "inter_client": self.lambda_i * helped * masked_mean(apart, rows.real),
            "agreement": self.lambda_a * masked_mean(agreement, kept),
            "l2": self.lambda_2 * sq_dist(psi, sigma),
        }
        if self.lambda_1:
            terms["l1"] = self.lambda_1 * sum((value.abs().sum() for value in psi.values()), logits.new_zeros(()))
        return terms

    def download(self, server: Parts, visit: Visit) -> Parts:
        now = (visit.round + 1) % self.every == 0
        psi = Partial(server["psi"], {name: value != 0 for name, value in server["psi"].items()})
        chosen = neighbours.choose(server["memory"], visit.client, self.count, wanted=now)
        return {"sigma": server["sigma"], "psi": psi, "helpers": chosen, "plateau": server["plateau"]}

    def start(self, down: Parts, kept: Parts) -> Parts:
        return {**down, "psi": down["psi"].fill(otherwise=zeros(down["psi"].values))}

    def upload(self, net: Net, parts: Parts, down: Parts) -> Parts:
        received = down["psi"].fill(otherwise=zeros(down["psi"].values))
        psi = thinned(parts["psi"], self.sparse)
        return {"sigma": moved(parts["sigma"], down["sigma"], self.delta), "psi": moved(psi, received, self.delta)}

    def aggregate(self, net: Net, server: Parts, up: Parts, cohort: Cohort) -> Parts:
        before = {part: stack([server[part]] * len(cohort.clients)) for part in self.up}
        sigma, psi = (up[part].fill(otherwise=before[part]) for part in self.up)
        models = [add(at(sigma, place), at(psi, place)) for place in range(len(cohort.clients))]
        scores = neighbours.accuracies(net, models, cohort.validation)
        weights = scores / scores.sum() if self.reliability else averaging.weights(cohort, self.weighting)
        merged = {"sigma": averaging.mean(sigma, weights), "psi": averaging.mean(psi, weights)}
        memory = neighbours.remember(net, self.choice, server["memory"], models, psi, cohort, scores, self.count)
        plateau = server["plateau"]
        if cohort.validation is not None:
            images, labels = cohort.validation
            loss = F.cross_entropy(net.evaluate(add(merged["sigma"], merged["psi"]), images), labels)
            plateau = slow_down(plateau, loss, self.patience)
        return {**merged, "plateau": plateau, "memory": memory}

    def models(self, server: Parts) -> dict[str, Params]:
        return {"global": add(server["sigma"], thinned(server["psi"], self.sparse))}
