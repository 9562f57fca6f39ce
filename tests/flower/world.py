"""Real processes on this machine: a server and its sites, with TLS and keys, and ways to wait for what they do."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from semifed.experiment import Experiment
from semifed.federation.keys import make_keys

ODD, ODD_SERVER = (Path(__file__).parent / name for name in ("odd_site.py", "odd_server.py"))
PATIENCE = 600.0
"""Seconds for anything to happen; a busy machine takes its time to start a process."""


class World:
    """A folder with keys, a server and sites."""

    def __init__(self, folder: Path, experiment: Experiment, sites: str = "abc", host: str = "127.0.0.1") -> None:
        self.folder, self.experiment, self.sites, self.host = folder, experiment, sites, host
        self.port, self.out, self.keys = free_port(), folder / "run", folder / "keys"
        self._processes: list[subprocess.Popen[bytes]] = []
        make_keys(self.keys, [host, "localhost"] if host != "localhost" else [host], list(sites))
        (folder / "exp.toml").write_text(experiment.toml())

    @property
    def server(self) -> str:
        return f"{self.host}:{self.port}"

    def serve(self, *more: str, prefix: tuple[str, ...] = (), mode: str = "") -> subprocess.Popen[bytes]:
        words = ["serve", *(() if "--resume" in more else (str(self.folder / "exp.toml"),)), "--out", str(self.out)]
        words += ["--address", self.server, "--keys", str(self.keys / "server"), *more]
        command = [sys.executable, str(ODD_SERVER), mode] if mode else SEMIFED
        return self.start("serve", [*prefix, *command, *words])

    def join(
        self, site: str, *more: str, mode: str = "", prefix: tuple[str, ...] = (), keys: Path | None = None
    ) -> subprocess.Popen[bytes]:
        count = self.experiment.scenario.clients
        words = [
            "join",
            "--server",
            self.server,
            "--site",
            site,
            "--yes",
            "--folder",
            str(self.folder / f"site-{site}"),
        ]
        words += ["--data", f"part:{self.experiment.data}:{self.sites.index(site) % count}/{count}"]
        words += ["--keys", str(keys or self.keys / "sites" / site), *more]
        command = [sys.executable, str(ODD), mode] if mode else SEMIFED
        return self.start(site, [*prefix, *command, *words])

    def start(self, name: str, command: list[str]) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=self.folder)
        self._processes.append(process)
        return process

    def log(self, name: str) -> str:
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def rows(self) -> list[dict[str, Any]]:
        path = self.out / "rounds.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def wait(self, condition: Callable[[], Any], what: str, seconds: float = PATIENCE) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, f"{what} did not happen\n{self.story()}"
            time.sleep(0.1)

    def end(self, process: subprocess.Popen[bytes], code: int = 0) -> None:
        """Wait until a process has ended, with this exit code."""
        self.wait(lambda: process.poll() is not None, "the end")
        assert process.returncode == code, self.story()

    def story(self) -> str:
        return "\n".join(
            f"== {path.name}\n{path.read_text(errors='replace')[-3000:]}" for path in self.folder.glob("*.log")
        )

    def link(self) -> int:
        """The process id of Flower's SuperLink."""
        import psutil

        [serve] = [one for one in self._processes if one.poll() is None and "serve" in one.args]  # type: ignore[operator]
        children = psutil.Process(serve.pid).children()
        [link] = [one.pid for one in children if "--enable-supernode-auth" in one.cmdline()]
        return int(link)

    def close(self) -> None:
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(60)
            process.kill()
            process.wait()


SEMIFED = [sys.executable, "-c", "from semifed.cli import main; main()"]


@contextlib.contextmanager
def world(folder: Path, experiment: Experiment, **more: Any) -> Iterator[World]:
    """A world that leaves no process behind."""
    folder.mkdir(parents=True, exist_ok=True)
    made = World(folder, experiment, **more)
    try:
        yield made
    finally:
        made.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def kill(process: subprocess.Popen[bytes]) -> None:
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
