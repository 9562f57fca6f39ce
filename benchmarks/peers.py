"""Semifed against other frameworks on the same work, and against the machine.

python benchmarks/peers.py [--short] [--venvs FOLDER] [--only NAME ...]

The work is FedAvg on digits: a round is 10 clients x 600 images, batch 10, one local epoch, so 600 steps of a CNN with
21,840 parameters, and the mean of the clients' nets. Everybody starts from the same net and has the same split; the
order of the images and the dropout are their own. In one thread they take turns, a round each, and the least CPU time
counts; on two cores whole runs take turns, by the clock. The first round of a run is never counted, since
it warms up. Frameworks live in environments of their own (environments.py), with a script each (frameworks/).
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from statistics import mean
from typing import IO, NamedTuple

import torch

import limits
from environments import PACKAGES, CannotRunError, default_folder, last_line, python_of, version
from frameworks.ours import write_work
from semifed.methods.fedavg import FedAvg
from semifed.methods.fedsiam import FedSiamMT
from semifed.nets import kernels
from steps import CLIENTS, Case, race, step_forms

HERE = Path(__file__).resolve().parent
ONE_THREAD = ("eager", "fedlab", "pfl", "ours")
TWO_CORES = ("flower", "ours")
RUN_ROUNDS = 10  # of a run on two cores
RUN_SECONDS = 600  # after which a run is given up
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
THREADS = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class Done(NamedTuple):
    """One round."""

    wall: float
    cpu: float
    accuracy: float


class Peer:
    """A framework at work in a process of its own."""

    def __init__(self, name: str, data: Path, seed: int, rounds: int, venvs: Path, *more: str) -> None:
        python = python_of(name, venvs) if name in PACKAGES else Path(sys.executable)
        self._errors: IO[str] = tempfile.TemporaryFile("w+", dir=data.parent)  # noqa: SIM115  closed in `close`
        command = [str(python), "-m", f"frameworks.{name}", str(data), str(seed), str(rounds), *more]
        paths = {"PYTHONPATH": str(HERE), "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"}
        self._process = subprocess.Popen(
            command, cwd=HERE, env={**os.environ, **QUIET, **THREADS, **paths}, text=True, start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors,
        )  # fmt: skip
        self._patience = threading.Timer(RUN_SECONDS, self._end)
        self._patience.daemon = True
        self._patience.start()

    def ask(self, rounds: int = 1) -> None:
        """Order rounds; they are done one after the other."""
        assert self._process.stdin
        try:
            self._process.stdin.write("\n" * rounds)
            self._process.stdin.flush()
        except BrokenPipeError:
            raise CannotRunError(self._why()) from None

    def answer(self) -> Done:
        """What came of the next round."""
        assert self._process.stdout
        for line in self._process.stdout:
            if line.startswith('{"round"'):
                told = json.loads(line)
                return Done(told["wall"], told["cpu"], told["accuracy"])
        raise CannotRunError(self._why())

    def finish(self) -> None:
        """Wait for the end of a process that has done all its rounds."""
        assert self._process.stdout
        self._process.stdout.read()
        self._process.wait()

    def close(self) -> None:
        """End the process and all that it started."""
        self._patience.cancel()
        self._end()
        self._errors.close()

    def _end(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _why(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        self._errors.seek(0)
        return f"ended with {self._process.returncode}: {last_line(self._errors.read())}"


class Sheet:
    """What is known of each framework: its rounds, run by run, or why there are none."""

    def __init__(self) -> None:
        self.runs: dict[str, list[list[Done]]] = {}
        self.whole: dict[str, list[float]] = {}
        self.why: dict[str, str] = {}

    def least(self, name: str, clock: str) -> float:
        """The shortest round but for first ones, by the clock or of the processor."""
        rounds = [done for run in self.runs[name] for done in run[1:]]
        return min(done.cpu if clock == "cpu" else done.wall for done in rounds)

    def accuracy(self, name: str, rounds: int) -> float:
        """The mean over the runs."""
        return mean(run[rounds - 1].accuracy for run in self.runs[name])


def by_turns(names: Sequence[str], data: Path, seed: int, rounds: int, venvs: Path, sheet: Sheet) -> None:
    """One run of everybody, a round each in turn."""
    peers: dict[str, Peer] = {}
    try:
        for name in names:
            if name in sheet.why:
                continue
            try:
                peers[name] = Peer(name, data, seed, rounds, venvs)
                sheet.runs.setdefault(name, []).append([])
            except CannotRunError as error:
                sheet.why[name] = str(error)
        for round in range(rounds):
            for name in [name for name in peers if name not in sheet.why]:
                try:
                    peers[name].ask()
                    done = peers[name].answer()
                except CannotRunError as error:
                    sheet.why[name] = str(error)
                    continue
                sheet.runs[name][-1].append(done)
                print(f"  seed {seed} round {round + 1} {name:7} {done.cpu:6.2f} s {done.accuracy:5.1f}%", flush=True)
    finally:
        for peer in peers.values():
            peer.close()


def whole_run(name: str, data: Path, seed: int, venvs: Path, sheet: Sheet) -> None:
    """A run from the start of its process to the end, with two processes that train."""
    if name in sheet.why:
        return
    more = ("2",) if name == "ours" else ()
    try:
        if name in PACKAGES:
            python_of(name, venvs)  # so that making it does not count
        started = time.perf_counter()
        peer = Peer(name, data, seed, RUN_ROUNDS, venvs, *more)
    except CannotRunError as error:
        sheet.why[name] = str(error)
        return
    try:
        peer.ask(RUN_ROUNDS)
        run = [peer.answer() for _ in range(RUN_ROUNDS)]
        peer.finish()
    except CannotRunError as error:
        sheet.why[name] = str(error)
        return
    finally:
        peer.close()
    seconds = time.perf_counter() - started
    sheet.runs.setdefault(name, []).append(run)
    sheet.whole.setdefault(name, []).append(seconds)
    rest = min(done.wall for done in run[1:])
    print(
        f"  seed {seed} {name:7} first round {run[0].wall:5.1f} s, others from {rest:5.2f}, whole {seconds:5.1f}",
        flush=True,
    )


def label(name: str) -> str:
    return {"eager": "plain eager loop", "ours": "semifed"}.get(name) or version(name)


def table(sheet: Sheet, names: Sequence[str], clock: str, rounds: int) -> None:
    """Seconds a round, how many times those of ours, and the accuracy."""
    whole = f" {f'{RUN_ROUNDS} rounds, s':>13} {'ratio':>6}" if sheet.whole else ""
    print(f"\n  {'':28} {f'{clock} s a round':>16} {'ratio':>6}{whole} {f'accuracy after {rounds}':>18}")
    for name in names:
        if name in sheet.why or name not in sheet.runs:
            print(f"  {label(name):28} {sheet.why.get(name, 'not run')}")
            continue
        ours = sheet.least("ours", clock) if sheet.runs.get("ours") and "ours" not in sheet.why else float("nan")
        least = sheet.least(name, clock)
        row = f"  {label(name):28} {least:16.2f} {least / ours:5.1f}x"
        if sheet.whole:
            total = min(sheet.whole[name])
            row += f" {total:13.1f} {total / min(sheet.whole.get('ours', [float('nan')])):5.1f}x"
        print(f"{row} {sheet.accuracy(name, rounds):17.1f}%", flush=True)


def local_steps(short: bool) -> None:
    """Ours against the plain loop, with and without a second net that follows; cores.py has the large net."""
    print(f"\nlocal steps of {CLIENTS} clients, one thread, CPU ms for one step of all of them", flush=True)
    for method in (FedAvg(), FedSiamMT(repeat=1)):
        case = Case("mnist-cnn", method, 10)
        forms = step_forms(case)
        times = race({"eager": forms["eager"], "semifed": forms["kernels"]}, 2 if short else 12)
        eager, ours = (times[form] / case.steps for form in ("eager", "semifed"))
        print(f"  {case!s:34} eager {eager:8.1f}   semifed {ours:8.1f}   {eager / ours:5.1f}x", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Semifed against other frameworks on the same work.")
    parser.add_argument("--short", action="store_true", help="fewer turns, one seed")
    parser.add_argument("--venvs", type=Path, default=default_folder(), help="where the frameworks' environments lie")
    parser.add_argument("--only", nargs="+", default=[*ONE_THREAD, "flower"], help="whom to compare")
    given = parser.parse_args()
    torch.set_num_threads(1)
    seeds, rounds, venvs = (1 if given.short else 3), (4 if given.short else 10), given.venvs.expanduser()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before the start; kernels: {kernels.status()}")
    limits.show(limits.rates(1 if given.short else 4))
    local_steps(given.short)
    alone, together = Sheet(), Sheet()
    with tempfile.TemporaryDirectory() as folder:
        data = [Path(folder) / f"seed{seed}.npz" for seed in range(seeds)]
        print(f"\nFedAvg, one thread, {rounds} rounds by turns", flush=True)
        for seed, path in enumerate(data):
            write_work(path, seed)
            by_turns([name for name in ONE_THREAD if name in given.only], path, seed, rounds, venvs, alone)
        table(alone, [name for name in ONE_THREAD if name in given.only], "cpu", rounds)
        print(f"\nFedAvg, two processes, runs of {RUN_ROUNDS} rounds by turns, wall time", flush=True)
        for seed, path in enumerate(data):
            for name in TWO_CORES:
                if name in given.only:
                    whole_run(name, path, seed, venvs, together)
        table(together, [name for name in TWO_CORES if name in given.only], "wall", rounds)


if __name__ == "__main__":
    main()
