"""`semifed join`: one site, which stays until the run is over and comes back by itself when the server was away."""

import time
from collections.abc import Callable
from pathlib import Path

from semifed.engine.flower_client import Site, SiteOptions
from semifed.engine.wire import Letter
from semifed.errors import RunError, SettingError
from semifed.federation import keys
from semifed.federation.addresses import check_address, check_insecure, host_of
from semifed.federation.explaining import BUSY_KEY, explain, is_refusal
from semifed.federation.node import Clock, Node
from semifed.federation.serving import need_flower

_HEARD = 3.0
"""Seconds until the server has fetched why a site leaves: Flower drops what a site that is gone has said."""


def join(
    server: str,
    options: SiteOptions,
    *,
    keys_folder: Path,
    agree: Callable[[str], bool],
    insecure: bool = False,
    patience: float = 3600.0,
    limit: int = 2**31,
    say: Callable[[str], None] = lambda _: None,
) -> str:
    """Take part in the server's run until it is over; the number of the run.

    `agree` is shown what will be trained, sent and kept, and says whether to go on. Without any contact to the
    server for `patience` seconds the site gives up.
    """
    need_flower()
    check_address(server)
    keys.check_name(options.name)
    check_insecure(host_of(server), insecure)
    keys.load_key(keys_folder / "site.key")
    site, waiting, clock = Site(options, agree, say), _Waiting(server, patience, say), Clock()
    while not site.ended:
        node = Node(server, keys_folder, insecure, limit, clock)
        try:
            node.connect()
            waiting.reached(options.name)
            node.serve(lambda letter: _told(site.answer(letter), say), lambda: bool(site.ended or site.refused))
            if site.refused:
                time.sleep(_HEARD)
        except (OSError, RuntimeError, ValueError) as error:
            waiting.failed(error)
        except Exception as error:
            if not type(error).__module__.startswith("httpx"):
                raise
            waiting.failed(error)
        finally:
            node.close()
        if site.refused:
            raise SettingError(site.refused)
    return site.ended


def _told(reply: Letter, say: Callable[[str], None]) -> Letter:
    """Say what is about to be sent."""
    head = reply.head
    if head["kind"] == "trained":
        say(f"round {head['round'] + 1}: trained on {head['examples']} images, sends {len(reply.body):,} bytes")
    return reply


class _Waiting:
    """How long a site has been without the server, and what it says about it."""

    def __init__(self, server: str, patience: float, say: Callable[[str], None]) -> None:
        self._server, self._patience, self._say = server, patience, say
        self._last, self._refused_since, self._told = time.monotonic(), 0.0, ""

    def reached(self, name: str) -> None:
        """The server knows this site."""
        self._say(f"{name} is connected to {self._server}")
        self._last, self._refused_since, self._told = time.monotonic(), 0.0, ""

    def failed(self, error: Exception) -> None:
        """Wait a moment and go on, or say why not."""
        text, again = explain(error, self._server)
        now = time.monotonic()
        if is_refusal(error):
            self._refused_since = self._refused_since or now
            again = again and now - self._refused_since < BUSY_KEY
        if not again or now - self._last > self._patience:
            raise RunError(text) from None
        if text != self._told:
            self._say(f"{text}; trying again")
            self._told = text
        time.sleep(2.0)
