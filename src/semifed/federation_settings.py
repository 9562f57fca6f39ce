"""How rounds are held between real sites: their share of an experiment file."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from semifed.settings import Settings, option


@dataclass(frozen=True)
class FederationSettings(Settings):
    """The [federation] table: read by `semifed serve`; a simulation has no use for it."""

    table: ClassVar[str] = "federation"

    min_sites: int | None = option(
        None, "sites that must be there before a round begins; as many as a round draws if not given", least=1
    )
    quorum: int | None = option(None, "answers that a round needs to count; as many as min_sites if not given", least=1)
    deadline: float = option(600.0, "seconds that sites have for a round; who is later is a straggler", above=0)
    attempts: int = option(3, "times that a round without a quorum is held before the run ends", least=1)
    patience: float = option(3600.0, "seconds to wait for sites before the run ends", above=0)
    limit: int = option(1024, "largest message in MB; a larger one is refused before it is read", least=1)
    server_data: Literal["split", "all"] = option(
        "split", "what of `data` the server holds: its share of the scenario, as in a simulation, or all of it"
    )
    site_test: float = option(
        0.0, "share of its labelled data that a site holds out to test models on; numbers alone leave", least=0, below=1
    )


WAITING = tuple(f"federation.{name}:" for name in ("min_sites", "quorum", "deadline", "attempts", "patience", "limit"))
"""What of it may change while a run goes on: how long and for whom the server waits."""
