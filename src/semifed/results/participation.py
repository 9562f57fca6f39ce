"""Who took part in a run: how often each client was drawn, and what became of its answers."""

from collections.abc import Sequence
from typing import NamedTuple

from semifed.results.record import Row


class Part(NamedTuple):
    """One client's part in a run, in rounds."""

    client: int
    drawn: int
    late: int  # no answer in time, or none at all
    refused: int  # by the gate
    clipped: int  # counted, but shortened
    why: dict[str, int]  # how often for which reason

    @property
    def counted(self) -> int:
        """Rounds in which its answer was used."""
        return self.drawn - self.late - self.refused


def participation(rows: Sequence[Row]) -> dict[int, Part]:
    """The part of every client that was ever drawn, by its number."""
    found: dict[int, Part] = {}
    for row in rows:
        late, refused, clipped = row.get("stragglers", {}), row.get("refused", {}), row.get("clipped", [])
        for client in row["clients"]:
            own, name = found.get(client, Part(client, 0, 0, 0, 0, {})), str(client)
            reason = str(late.get(name) or refused.get(name, "").partition(":")[0])
            found[client] = Part(
                client,
                own.drawn + 1,
                own.late + (name in late),
                own.refused + (name in refused),
                own.clipped + (client in clipped),
                {**own.why, reason: own.why.get(reason, 0) + 1} if reason else own.why,
            )
    return dict(sorted(found.items()))
