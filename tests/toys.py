"""What the tests of runs share: small methods of their own, the command line in this process, and comparisons."""

import contextlib
import hashlib
import io
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import psutil
from torch import Tensor

from semifed import cli
from semifed.batch import Batch, Clock
from semifed.methods.base import Descend, Follow, Move, Terms
from semifed.methods.fedavg import FedAvg
from semifed.methods.losses import sq_dist
from semifed.nets.net import Net, Pass
from semifed.params import Parts
from semifed.results.record import Row
from semifed.run import Event, Watch

TINY = (
    "data=synthetic",
    "net=mlp",
    "scenario.clients=6",
    "scenario.gamma=0.5",
    "train.clients_per_round=3",
    "train.rounds=4",
    "client.epochs=1",
    "client.batch=20",
    "engine.chunk=2",
)
"""An experiment of a quarter of a second; chunks of 2 and 1 clients, so that two workers both have work."""


@dataclass(frozen=True)
class Failing(FedAvg):
    """FedAvg with a mistake in its loss."""

    def supervised(self, net: Pass, parts: Parts, batch: Batch) -> Terms:
        raise KeyError("nowhere")


@dataclass(frozen=True)
class Keeper(FedAvg):
    """Each client keeps a slow net of its own and is pulled to it, more so at every visit."""

    title: ClassVar[str] = "keeps a part at the client and counts its visits"
    keeps: ClassVar[tuple[str, ...]] = ("memory",)

    def enroll(self, net: Net, down: Parts, key: int) -> Parts:
        return {"memory": down["net"]}

    def client(self) -> tuple[Move, ...]:
        return (Descend(("net",), self.pulled), Follow("memory", ("net",), self.decay))

    def decay(self, clock: Clock) -> Tensor:
        return 1 - 1 / (1.0 + clock.visit)

    def pulled(self, net: Pass, parts: Parts, batch: Batch) -> Terms:
        distance = sq_dist(net.weights(parts["net"]), parts["memory"])
        return self.supervised(net, parts, batch) | {"pull": 0.1 * batch.clock.visit * distance}


@dataclass(frozen=True)
class AtServer(FedAvg):
    """Needs the labels at the server."""

    labels: ClassVar[tuple[str, ...]] = ("server",)


class Said(NamedTuple):
    """What a command has said, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def line(self) -> str:
        """The one line on standard error."""
        assert self.err.count("\n") == 1, self.err
        assert "Traceback" not in self.err
        return self.err.strip()


def call(*words: str) -> Said:
    """Run a command in this process, with streams as strict as those of a pipe."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            cli.main(words)
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
    return Said(code, _text(out), _text(err))


def _text(stream: io.TextIOWrapper) -> str:
    stream.seek(0)
    return stream.read()


def sets(*assignments: str) -> list[str]:
    """``--set`` before each assignment."""
    return [word for assignment in assignments for word in ("--set", assignment)]


def tiny(out: Path | str, *more: str) -> list[str]:
    """The words of a small run; assignments among them come after those of the small experiment."""
    assignments = [word for word in more if "=" in word]
    return ["run", *sets(*TINY, *assignments), "--out", str(out), *(word for word in more if "=" not in word)]


def environment() -> dict[str, str]:
    """For processes: one thread, the tests' own modules, no stray settings."""
    here = os.pathsep.join([str(Path(__file__).parent), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    return {**os.environ, "PYTHONPATH": here.strip(os.pathsep), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "error"}


def start(*words: str, cwd: Path | None = None) -> "subprocess.Popen[str]":
    """Start a command in a process of its own, and in a group of its own, as a terminal does."""
    command = [sys.executable, "-c", "from semifed.cli import main; main()", *words]
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, cwd=cwd, stdout=pipe, stderr=pipe, text=True, env=environment(), start_new_session=True
    )


def end(process: "subprocess.Popen[str]", seconds: float = 120) -> Said:
    """Wait for a process and hear what it has said."""
    out, err = process.communicate(timeout=seconds)
    return Said(process.returncode, out, err)


def stop_after(rounds: int) -> Watch:
    """Press Ctrl-C after so many rounds."""

    def watch(event: Event) -> None:
        if len(event.rows) == rounds:
            raise KeyboardInterrupt

    return watch


def worker_processes(main: psutil.Process) -> list[psutil.Process]:
    """The processes that train for a process."""
    found = []
    for child in main.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # ended meanwhile: a compiler, a probe
            if "spawn_main" in str(child.cmdline()) or child.cmdline() == main.cmdline():  # spawned or forked
                found.append(child)
    return found


def plain(rows: list[Row]) -> list[Row]:
    """Rows without what no run repeats: the seconds."""
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


def rows_in(folder: Path) -> list[Row]:
    """The rows in a run's folder, without the seconds."""
    return plain([json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()])


def summary_in(folder: Path) -> dict[str, Any]:
    """The summary in a run's folder."""
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_bytes())
    return summary


def contents(folder: Path) -> dict[str, str]:
    """A hash and the time of change of every file in a folder, to see that nothing was touched."""
    return {
        path.name: f"{hashlib.sha256(path.read_bytes()).hexdigest()} {path.stat().st_mtime_ns}"
        for path in folder.iterdir()
    }


def same_end(one: Path, two: Path) -> bool:
    """Whether two runs have come to the same."""
    return rows_in(one) == rows_in(two) and summary_in(one)["model"] == summary_in(two)["model"]


def refused(folder: Path, *words: str, code: int = 4) -> str:
    """The line with which a run is refused to go on, and nothing in its folder has changed."""
    before = contents(folder)
    said = call("run", "--out", str(folder), "--resume", *words)
    assert said.code == code, said
    assert contents(folder) == before
    return said.line
