"""How far clients are trusted: their share of an experiment file."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from semifed.errors import SettingError
from semifed.settings import Settings, option


@dataclass(frozen=True)
class GateSettings(Settings):
    """The [gate] table: what an update must be like to be merged, and what happens when too few are."""

    table: ClassVar[str] = "gate"

    quorum: float = option(
        0.0, "least share of a round's clients whose updates must be sound; 0: one is enough", least=0, most=1
    )
    without_quorum: Literal["skip", "stop"] = option(
        "skip", "skip: the model stays as it is and the run goes on; stop: the run ends before that round"
    )
    norm: float = option(
        1000.0, "an update may be so many times as long as the median of its round; 0: any length", least=0
    )
    beyond_norm: Literal["refuse", "clip"] = option("refuse", "what happens to one that is longer")
    most_examples: int = option(10**9, "most examples that a client may claim", least=1)
    most_weight: float = option(
        1.0,
        "largest share of a round's examples that one client may stand for; what it claims beyond is cut",
        above=0,
        most=1,
    )
    unchanged: Literal["refuse", "report"] = option(
        "refuse", "what happens to a client that claims a loss but sends back what it received (a free rider)"
    )
    odd_classes: float = option(
        4.0,
        "alarm for a client that takes more of its rows for a class than the others, by so many deviations; 0: none",
        least=0,
    )


Rule = Literal["mean", "median", "trimmed-mean", "krum", "multi-krum", "geometric-median", "clip", "fltrust"]


@dataclass(frozen=True)
class AggregateSettings(Settings):
    """The [aggregate] table: what stands in for the mean of the clients' updates, under any method that averages."""

    table: ClassVar[str] = "aggregate"

    rule: Rule = option("mean", "how updates become one; all but mean and clip leave the weights of clients aside")
    hostile: int = option(
        0, "hostile clients a round that trimmed-mean (cut at each end), krum and multi-krum are to stand", least=0
    )
    chosen: int = option(0, "updates that multi-krum takes the mean of; 0: all but hostile + 2", least=0)
    longest: float = option(1.0, "clip: longest update, as a multiple of the median of its round", above=0)

    def fewest(self) -> int:
        """How many updates the rule needs at least."""
        if self.rule in ("krum", "multi-krum"):
            return max(2 * self.hostile + 3, self.chosen + self.hostile + 2)
        return 2 * self.hostile + 1 if self.rule == "trimmed-mean" else 1

    def check(self, cohort: int, trusted: bool) -> None:
        """Look whether the rule can hold in rounds of so many clients."""
        if cohort < self.fewest():
            raise SettingError(
                f"aggregate.hostile: {self.rule} with {self.hostile} hostile clients"
                f"{f' and {self.chosen} chosen' if self.chosen else ''} needs rounds of {self.fewest()} clients, not "
                f"{cohort}; lower it or raise train.clients_per_round"
            )
        if self.rule == "fltrust" and not trusted:
            raise SettingError(
                "aggregate.rule: fltrust needs images with labels at the server to judge by; set "
                'scenario.labels = "server", or scenario.validation, e.g. 200'
            )


@dataclass(frozen=True)
class PrivacySettings(Settings):
    """The [privacy] table: differential privacy of whole clients, in what the server makes of their updates."""

    table: ClassVar[str] = "privacy"

    clip: float = option(
        0.0, "longest update of a client, over all that it sends; longer ones are cut to it; 0: no privacy", least=0
    )
    noise: float = option(
        1.0, "standard deviation of the noise on the sum of a round's updates, as a multiple of clip", above=0
    )
    delta: float = option(
        1e-5, "epsilon is told for this delta; it must be below 1 / scenario.clients", above=0, below=1
    )
    source: str = option(
        "",
        "file of at least 32 random bytes that noise and draws of clients come from; empty: the seed, which a "
        "simulation repeats by and which keeps nothing from those who know it",
    )

    @property
    def on(self) -> bool:
        """Whether there is any."""
        return self.clip > 0

    def check(self, clients: int, rule: str, quorum: float, patience: int) -> None:
        """Look whether nothing else in the experiment lets a single client be seen."""
        if not self.on:
            if self != PrivacySettings():
                raise SettingError("privacy.clip: set it, e.g. 1.0: without it there is no privacy")
            return
        if self.delta >= 1 / clients:
            raise SettingError(f"privacy.delta: {self.delta:g} must be below 1 / {clients} clients to say anything")
        if rule != "mean":
            raise SettingError(f'privacy: noise is made for a mean; set aggregate.rule = "mean", not {rule}')
        if quorum:
            raise SettingError("gate.quorum: must be 0 with [privacy]: one client would decide whether a round counts")
        if patience:
            raise SettingError(
                "train.stop_on_collapse: must be 0 with [privacy]: the clients' labels would end the run"
            )


@dataclass(frozen=True)
class AttackSettings(Settings):
    """The [attack] table: which clients of a simulation are hostile, and what they do."""

    table: ClassVar[str] = "attack"

    kind: Literal["none", "sign-flip", "scale", "gaussian", "nans", "free-rider", "label-flip", "poison"] = option(
        "none",
        "update reversed, stretched, replaced by noise or NaN; none sent but losses claimed; labels mirrored; "
        "unlabelled images drawn towards one of class `target`",
    )
    share: float = option(0.0, "share of the clients that are hostile, drawn by the seed", least=0, most=1)
    clients: tuple[int, ...] = option((), "the hostile clients, instead of a share")
    strength: float = option(
        5.0, "sign-flip, scale, gaussian: length of what is sent, as a multiple of the honest update", above=0
    )
    poisoned: float = option(1.0, "poison: share of a hostile client's unlabelled images", above=0, most=1)
    target: int = option(0, "poison: the class that images are drawn towards", least=0)

    def check(self, clients: int) -> None:
        """Look whether it says who is hostile, among so many clients."""
        if self.kind != "none" and not self.share and not self.clients:
            raise SettingError("attack.share: say who is hostile: a share such as 0.3, or attack.clients")
        for client in self.clients:
            if not 0 <= client < clients:
                raise SettingError(f"attack.clients: there is no client {client}; they are 0 to {clients - 1}")
