"""A real browser for tests, spoken to over two pipes: DevTools messages as JSON, each ended by a zero byte."""

import base64
import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
LONGEST = 120.0
"""Seconds that anything may take on a machine that is busy with other things."""


def find() -> str | None:
    """The program, if there is one: SEMIFED_CHROMIUM, or what the path has."""
    return os.environ.get("SEMIFED_CHROMIUM") or next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One page of a browser without a window."""

    def __init__(self, send: int, receive: int) -> None:
        self._send, self._receive, self._rest, self._number = send, receive, b"", 0
        self._session: str | None = None
        self.complaints: list[str] = []
        self.requests: list[str] = []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The answer to one message; events on the way are listened to."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._send, json.dumps(message).encode() + b"\0")
        while True:
            heard = self._hear()
            if heard.get("id") == self._number:
                assert "error" not in heard, heard
                result: dict[str, Any] = heard["result"]
                return result

    def _hear(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            piece = os.read(self._receive, 1 << 20)
            assert piece, "the browser is gone"
            self._rest += piece
        line, _, self._rest = self._rest.partition(b"\0")
        heard: dict[str, Any] = json.loads(line)
        self._note(heard.get("method", ""), heard.get("params", {}))
        return heard

    def _note(self, event: str, facts: dict[str, Any]) -> None:
        if event == "Runtime.exceptionThrown":
            self.complaints.append(str(facts["exceptionDetails"]))
        elif event == "Runtime.consoleAPICalled" and facts["type"] in ("error", "warning", "assert"):
            self.complaints.append(str(facts["args"]))
        elif event == "Log.entryAdded" and facts["entry"]["level"] in ("error", "warning"):
            self.complaints.append(str(facts["entry"]))
        elif event == "Network.requestWillBeSent":
            self.requests.append(str(facts["request"]["url"])[:200])

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        answer = self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait(self, script: str) -> Any:
        """Until an expression is true."""
        until = time.monotonic() + LONGEST
        while not (value := self.run(script)):
            assert time.monotonic() < until, f"never true: {script}"
            time.sleep(0.05)
        return value

    def open(self, path: Path, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Go to a file, in a window of this size and in these colours."""
        mobile, scheme = width < 600, "dark" if dark else "light"
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.complaints.clear()
        self.requests.clear()
        self.ask("Page.navigate", url=path.resolve().as_uri())
        self.wait("document.readyState === 'complete'")

    def picture(self, path: Path, whole: bool = True) -> None:
        """Save what the page looks like."""
        size = self.ask("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        more: dict[str, Any] = {"clip": clip, "captureBeyondViewport": True} if whole else {}
        path.write_bytes(base64.b64decode(self.ask("Page.captureScreenshot", format="png", **more)["data"]))


@contextlib.contextmanager
def opened(program: str, profile: Path) -> Iterator[Browser]:
    """A browser for a while."""
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()

    def place_pipes() -> None:
        high_in, high_out = (fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (theirs_in, theirs_out))
        os.dup2(high_in, 3)
        os.dup2(high_out, 4)

    flags = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars")
    command = [program, *flags, "--no-first-run", f"--user-data-dir={profile}", "--remote-debugging-pipe"]
    with subprocess.Popen(
        command,
        preexec_fn=place_pipes,  # noqa: PLW1509
        close_fds=False,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        os.close(theirs_in)
        os.close(theirs_out)
        try:
            yield Browser(ours_out, ours_in)
        finally:
            os.close(ours_out)
            os.close(ours_in)
            process.kill()
