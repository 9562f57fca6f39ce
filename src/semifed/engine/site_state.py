"""What a site keeps between rounds: its own parts and how often it has taken part, in its own folder, by round.

A repeated round starts from the state before it, so a round that was lost on the way leaves no trace. The last
few states stay, since a server may go back further than one round.
"""

from pathlib import Path
from typing import NamedTuple

from semifed.errors import RunError
from semifed.params import Parts, flatten, unflatten
from semifed.results.files import read_tensors, write_tensors

STAYING = 4
"""States that are kept; a server goes back by its checkpoint or the one before."""


class SiteState(NamedTuple):
    """The state after a round; `kept` is None before the first."""

    kept: Parts | None
    visits: int


class StateFolder:
    """The states of one site in one run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise RunError(f"{folder}: cannot be made: {error.strerror}; give another --folder") from None

    def before(self, round: int) -> SiteState:
        """The newest state of an earlier round."""
        earlier = [one for one in self._rounds() if one < round]
        if not earlier:
            return SiteState(None, 0)
        tensors, facts = read_tensors(self._path(max(earlier)))
        return SiteState(unflatten(tensors), int(facts["visits"]))

    def save(self, round: int, kept: Parts, visits: int) -> None:
        """Keep the state after a round; later ones, of a time that did not count, go."""
        try:
            write_tensors(self._path(round), flatten(kept), {"visits": str(visits), "round": str(round)})
        except OSError as error:  # the server hears of it, so no names of files
            raise RunError(f"the state of a round cannot be kept: {error.strerror}; make room in --folder") from None
        rounds = self._rounds()
        earlier = [one for one in rounds if one <= round]
        for one in [*earlier[:-STAYING], *(one for one in rounds if one > round)]:
            self._path(one).unlink(missing_ok=True)

    def _rounds(self) -> list[int]:
        return sorted(int(path.stem.removeprefix("round-")) for path in self.folder.glob("round-*.safetensors"))

    def _path(self, round: int) -> Path:
        return self.folder / f"round-{round:06d}.safetensors"
