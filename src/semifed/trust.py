"""How far clients are trusted: their share of an experiment file."""

from dataclasses import dataclass
from typing import ClassVar, Literal

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
