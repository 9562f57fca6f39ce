"""A link without a network: letters go straight to sites in this process, as bytes, and can be tampered with."""

from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from semifed.engine.flower_client import Site, SiteOptions
from semifed.engine.flower_server import LinkLostError
from semifed.engine.local import Absent
from semifed.engine.wire import Letter, read_head, write_head

Tamper = Callable[[str, Letter], "Letter | Absent | None"]
"""From a site's name and its answer to what arrives; None if nothing ever does."""


class Post:
    """Sites by name; what they answer lies ready at once."""

    def __init__(self, sites: Mapping[str, Site], tamper: Tamper = lambda _, letter: letter) -> None:
        self.sites, self.tamper = dict(sites), tamper
        self.sent: list[tuple[str, Letter]] = []
        self.answered: list[tuple[str, Letter]] = []
        self.away: set[str] = set()
        self.lose = 0  # how often the link is still to break
        self.closed = False
        self._ready: dict[str, Letter | Absent] = {}
        self._number = 0

    def online(self) -> list[str]:
        return [site for site in self.sites if site not in self.away]

    def send(self, letters: Mapping[str, Letter], seconds: float) -> dict[str, str]:
        assert seconds > 0
        receipts = {}
        for site, letter in letters.items():
            self._number += 1
            receipts[site] = f"{site}-{self._number}"
            travelled = Letter(read_head(write_head(letter.head)), bytes(letter.body))
            self.sent.append((site, travelled))
            answer = self.sites[site].answer(travelled)
            self.answered.append((site, answer))
            arrived = self.tamper(site, Letter(read_head(write_head(answer.head)), answer.body))
            if arrived is not None:
                self._ready[receipts[site]] = arrived
        return receipts

    def collect(self, receipts: Collection[str]) -> dict[str, Letter | Absent]:
        if receipts and self.lose:
            self.lose -= 1
            self._ready.clear()
            raise LinkLostError
        return {receipt: self._ready.pop(receipt) for receipt in receipts if receipt in self._ready}

    def close(self) -> None:
        self.closed = True


def make_sites(folder: Path, count: int, agree: Callable[[str], bool] = lambda _: True) -> Post:
    """Sites a, b, c, ... that hold the parts of a simulation."""
    names = [chr(ord("a") + number) for number in range(count)]
    options = {
        name: SiteOptions(name, f"part:synthetic:{number}/{count}", folder / name) for number, name in enumerate(names)
    }
    return Post({name: Site(own, agree) for name, own in options.items()})
