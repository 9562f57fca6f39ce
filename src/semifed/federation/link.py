"""Flower's SuperLink as a child of this process, and letters through it.

If it dies it is started anew, the sites' keys are registered again, and whoever waits hears that the link was lost.
"""

import os
import secrets
import select
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from semifed.engine.flower_server import LinkLostError
from semifed.engine.local import Absent
from semifed.engine.wire import Letter, LetterError, read_head, write_head
from semifed.errors import RunError
from semifed.federation import frames, keys
from semifed.federation.front import Door
from semifed.federation.registering import register

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
"""Nothing is looked up, reported or installed from elsewhere."""

START_TIME = 600.0
"""Seconds that Flower has to start, on a busy machine too."""

# The link ends with the process that started it, also if that one is killed. Flower's control interface, with which
# code can be run, is on the same port; other users of this machine reach it too, so it wants a secret.
_CHILD = """
import hmac, os, sys, threading, time
parent, secret = os.getppid(), os.environ.pop("SEMIFED_LINK_SECRET").encode()
def watch():
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)
threading.Thread(target=watch, daemon=True).start()
from flwr.superlink import extensions
from flwr.superlink.cli import flower_superlink
from starlette.middleware import Middleware
class Guard:
    def __init__(self, app):
        self._app = app
    async def __call__(self, scope, receive, send):
        if scope["type"] == "http" and not scope["path"].startswith(("/v1/fleet/", "/v1/runtime/")):
            if not hmac.compare_digest(dict(scope["headers"]).get(b"semifed-secret", b""), secret):
                await send({"type": "http.response.start", "status": 403, "headers": []})
                await send({"type": "http.response.body", "body": b""})
                return
        await self._app(scope, receive, send)
others = extensions.get_middleware
extensions.get_middleware = lambda: (Middleware(Guard), *others())
sys.exit(flower_superlink())
"""


class _Sent(NamedTuple):
    """To whom a letter went, and when."""

    site: str
    time: float


class FlowerLink:
    """Letters to sites, by way of Flower."""

    def __init__(self, sites: Mapping[str, bytes], log: Path) -> None:
        self._sites, self._log = sites, log
        self._folder = Path(tempfile.mkdtemp(prefix="semifed-"))  # only its owner may look into it
        self._port, self._secret = _free_port(), secrets.token_hex(32)
        keys.make_keys(self._folder / "keys", ["127.0.0.1"], [], days=3650)
        self.address, self.verify = (
            f"https://127.0.0.1:{self._port}",
            ssl.create_default_context(cafile=str(self._folder / "keys" / "ca.crt")),
        )
        self.door: Door | None = None
        self._after: list[Callable[[], None]] = []
        self._nodes: dict[str, int] = {}
        self._sent: dict[str, _Sent] = {}  # by receipt
        self._relay: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def online(self) -> list[str]:
        """The sites that are connected."""
        answer, _ = self._ask({"do": "nodes"})
        there = set(answer["nodes"])
        return [site for site, node in self._nodes.items() if node in there]

    def send(self, letters: Mapping[str, Letter], seconds: float) -> dict[str, str]:
        """Send letters; what several have in common is passed on once."""
        if not letters:
            return {}
        blobs: dict[int, bytes] = {}
        rows, now = [], time.monotonic()
        for site, letter in letters.items():
            blobs.setdefault(id(letter.body), letter.body)
            if self.door:
                self.door.asked(self._nodes[site])
            rows.append([self._nodes[site], write_head(letter.head), list(blobs).index(id(letter.body))])
        answer, _ = self._ask({"do": "send", "letters": rows, "seconds": seconds}, list(blobs.values()))
        pairs = zip(letters, answer["receipts"], strict=True)
        taken = {site: receipt for site, receipt in pairs if receipt}
        self._sent |= {receipt: _Sent(site, now) for site, receipt in taken.items()}
        return taken

    def collect(self, receipts: Collection[str]) -> dict[str, Letter | Absent]:
        """What has come back."""
        if not receipts:
            return {}
        answer, blobs = self._ask({"do": "collect", "receipts": sorted(receipts)})
        replies = {receipt: _read(found, blobs) for receipt, found in answer["found"].items()}
        for receipt in receipts:
            if (why := self._nothing_will_come(self._sent[receipt], receipt in replies)) is not None:
                replies[receipt] = why
        for receipt in replies:
            del self._sent[receipt]
        return replies

    def _nothing_will_come(self, sent: _Sent, answered: bool) -> Absent | None:
        """Why a letter stays without an answer, which Flower does not say of a site that was away only shortly."""
        if self.door is None:
            return None
        node = self._nodes[sent.site]
        if (limit := self.door.over.get(node)) is not None:
            return Absent(f"its message is over the limit of {limit:,} bytes", refused=True)
        if not answered and sent.time < self.door.begun.get(node, sent.time):
            return Absent("the site was started anew, or connected anew")
        return None

    def on_close(self, also: Callable[[], None]) -> None:
        """Something else to end with the link."""
        self._after.append(also)

    def close(self) -> None:
        """End the link."""
        for also in self._after:
            also()
        self._stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _ask(self, head: dict[str, Any], blobs: list[bytes] | None = None) -> tuple[dict[str, Any], list[bytes]]:
        try:
            if self._relay is None:
                raise ConnectionError
            frames.send(self._relay, head, blobs or [])
            self._await(self._relay)
            frame = frames.receive(self._relay)
            if frame is None:
                raise ConnectionError
        except OSError:
            self._stop()
            self._start()
            raise LinkLostError from None
        if "error" in frame[0]:
            raise_if_running = self._process is not None and self._process.poll() is None
            if raise_if_running and "HTTPStatusError" in frame[0]["error"]:
                raise RunError(f"Flower refuses a message: {frame[0]['error'][:200]}")
            self._stop()
            self._start()
            raise LinkLostError
        return frame

    def _await(self, relay: socket.socket) -> None:
        """Until there is an answer; the relay would try for ever to reach a link that is dead or stuck."""
        end = time.monotonic() + START_TIME
        while not select.select([relay], [], [], 0.5)[0]:
            if self._process is None or self._process.poll() is not None or time.monotonic() > end:
                raise ConnectionError

    def _start(self) -> None:
        path = self._folder / "relay"
        path.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as waiting:
            waiting.bind(str(path))
            waiting.listen(1)
            waiting.settimeout(0.5)
            self._launch(path)
            self._wait_until_open()
            authority = (self._folder / "keys" / "ca.crt").read_bytes()
            self._nodes = register(f"127.0.0.1:{self._port}", authority, self._secret, self._sites)
            end = time.monotonic() + START_TIME
            while self._relay is None:
                if time.monotonic() > end or self._process is None or self._process.poll() is not None:
                    raise RunError(f"Flower's link does not start; {self._log} says why")
                with suppress(TimeoutError):
                    self._relay = waiting.accept()[0]
        self._relay.settimeout(None)

    def _launch(self, relay: Path) -> None:
        own = self._folder / "keys" / "server"
        bin_folder = str(Path(sys.executable).parent)
        environment = {
            **os.environ,
            **QUIET,
            "FLWR_HOME": str(self._folder / "flwr"),
            "SEMIFED_RELAY": str(relay),
            "SEMIFED_LINK_SECRET": self._secret,
            "PATH": f"{bin_folder}{os.pathsep}{os.environ.get('PATH', '')}",
        }
        command = [
            *(sys.executable, "-c", _CHILD),
            *("--host", "127.0.0.1", "--port", str(self._port), "--enable-supernode-auth"),
            *("--ssl-ca-certfile", str(own / "ca.crt")),
            *("--ssl-certfile", str(own / "server.crt"), "--ssl-keyfile", str(own / "server.key")),
            "--disable-runtime-dependency-installation",
        ]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own command
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment, start_new_session=True
            )

    def _wait_until_open(self) -> None:
        end = time.monotonic() + START_TIME
        while True:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self._port), 1):
                return
            if time.monotonic() > end or self._process is None or self._process.poll() is not None:
                raise RunError(f"Flower's link does not start; {self._log} says why")
            time.sleep(0.2)

    def _stop(self) -> None:
        if self._relay:
            self._relay.close()
            self._relay = None
        if self._process:
            self._process.terminate()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            with suppress(ProcessLookupError, PermissionError):  # what it started and has not ended itself
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process = None


def _read(found: Mapping[str, Any], blobs: list[bytes]) -> Letter | Absent:
    """What came back for one receipt."""
    if "lost" in found:
        return Absent(f"lost on the way: {found['lost'][:200]}")
    if "garbled" in found:
        return Absent(f"the answer cannot be read: {found['garbled'][:200]}", refused=True)
    try:
        return Letter(read_head(found["text"]), blobs[found["blob"]])
    except LetterError as error:
        return Absent(str(error), refused=True)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
