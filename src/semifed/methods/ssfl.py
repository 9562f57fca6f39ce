"""SSFL (Zhang et al., "Improving Semi-supervised Federated Learning by Reducing the Gradient Diversity of Models").

    nets with group normalisation; the cohort is cut into `groups` equal groups
    server : w_s <- w_avg, trained on its labels
    client : of group i starts from w_i, trains by FixMatch
    server : w_i <- (w_s + sum of the group's nets) / (clients of the group + 1);  w_avg <- mean of all w_i
             (without labels at the server there is no w_s: w_i is the group's mean)

Differs from the authors' code: one server net for all groups, as in the paper (there one a group); momentum starts
afresh at each visit (there it stays with a process's rank); their branch for labels at the client never separates
weak and strong views. Who takes part next starts from the mean of the group it falls into, as in both. Clients of a
group weigh the same, whatever `weighting` says.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from semifed.methods import averaging
from semifed.methods.base import Cohort, Visit
from semifed.methods.fixmatch import FixMatch
from semifed.nets.net import Net
from semifed.params import Parts, at, stack
from semifed.settings import option


@dataclass(frozen=True)
class SSFL(FixMatch):
    """FixMatch with group normalisation and group averaging."""

    title: ClassVar[str] = "SSFL: FixMatch, group normalisation, group averaging (Zhang et al. 2021)"
    norm: ClassVar[Literal["batch", "group", "none"] | None] = "group"
    not_private: ClassVar[str] = "it takes a mean of each group, and noise is made for one mean of all."
    idle: ClassVar[tuple[str, ...]] = ("weighting",)

    groups: int = option(2, "groups that a cohort is cut into", least=1)

    def init(self, net: Net, key: int) -> Parts:
        return {"net": net.init(key), "groups": {str(group): net.init(key) for group in range(self.groups)}}

    def download(self, server: Parts, visit: Visit) -> Parts:
        return {"net": server["groups"][str(visit.slot % self.groups)]}

    def aggregate(self, net: Net, server: Parts, up: Parts, cohort: Cohort) -> Parts:
        slots = cohort.slots or range(len(cohort.clients))
        groups = {}
        for group in server["groups"]:
            members = [place for place, slot in enumerate(slots) if slot % self.groups == int(group)]
            nets = [at(up["net"], place) for place in members if int(cohort.examples[place])]
            nets += [server["net"]] if cohort.server_examples else []
            if nets:
                groups[group] = averaging.mean(stack(nets), torch.full((len(nets),), 1 / len(nets)))
        share = torch.full((len(groups),), 1 / len(groups))
        merged = averaging.mean(stack(list(groups.values())), share)
        # A group that nobody was in goes on from the mean of the others.
        return {"net": merged, "groups": {group: groups.get(group, merged) for group in server["groups"]}}
