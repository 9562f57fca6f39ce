"""Stopped, killed and gone on with: the same rows and the same model as a run that was never disturbed (10, 64)."""

import contextlib
import os
import random
import shlex
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from semifed import Experiment, Record, run
from semifed.errors import RunError
from semifed.methods import METHODS
from semifed.results.folder import RunFolder
from semifed.run import Event
from toys import (
    TINY,
    Said,
    call,
    end,
    environment,
    plain,
    rows_in,
    start,
    stop_after,
    summary_in,
    tiny,
    worker_processes,
)


def _tiny(*assignments: str) -> Experiment:
    return Experiment.read(None, [*TINY, *assignments])


def _ended_as(record: Record, folder: Path) -> bool:
    return rows_in(folder) == plain(record.rows) and summary_in(folder)["model"] == record.summary["model"]


VARIANTS = {
    "plain": (),
    "rare checkpoints": ("train.checkpoint_every=3",),
    "kept state": ("method=toys:Keeper",),
    "kept state, rare checkpoints, rare tests": (
        "method=toys:Keeper",
        "train.checkpoint_every=3",
        "train.evaluate_every=2",
    ),
    "labels at the server": ("scenario.labels=server", "method=fedavg+"),
    "unlabelled data that arrive": ("method=fedsiam-mt", "scenario.arrivals=2", "scenario.rounds_per_arrival=2"),
    "sums over all parameters": ("net.norm=batch", "client.clip=0.1", "engine.mode=single", "method=fedprox"),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_64_stopped_twice_and_gone_on_with(variant: str, tmp_path: Path) -> None:
    experiment, folder = _tiny(*VARIANTS[variant]), tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        run(experiment, folder, watch=stop_after(1))
    heard: list[int] = []

    def stop_later(event: Event) -> None:
        heard.append(len(event.rows))
        if len(event.rows) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(experiment, folder, resume=True, watch=stop_later)
    assert heard == [1, 2, 3], "a stop keeps what is done, also between two checkpoints"
    unbroken = run(experiment)
    resumed = run(out=folder, resume=True)
    assert plain(resumed.rows) == plain(unbroken.rows)
    assert resumed.summary["model"] == unbroken.summary["model"]
    assert _ended_as(unbroken, folder)


@pytest.mark.parametrize("name", METHODS)
def test_64_every_method_goes_on_with_all_that_its_server_remembers(name: str, tmp_path: Path) -> None:
    words = [f"method={name}", f"scenario.labels={METHODS[name].labels[0]}", "scenario.validation=20"]
    words += ["method.phi=1"] if name == "fedsiam-d" else []  # from then on it remembers more in every round
    experiment, folder = _tiny(*words), tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        run(experiment, folder, watch=stop_after(3))
    resumed = run(out=folder, resume=True)
    assert plain(resumed.rows) == plain(run(experiment).rows)


def test_64_with_workers_that_die(tmp_path: Path) -> None:
    """What two workers have begun, one process ends as if it had done all (36); two go on in the slow tests."""
    folder = tmp_path / "run"

    def kill(event: Event) -> None:
        for process in worker_processes(psutil.Process()) if len(event.rows) == 2 else ():
            process.kill()

    with pytest.raises(RunError, match="a worker process died: out of memory"):
        run(_tiny("engine.workers=2", "method=toys:Keeper"), folder, watch=kill)
    assert not worker_processes(psutil.Process())
    assert summary_in(folder)["status"] == "failed"
    run(_tiny("method=toys:Keeper"), folder, resume=True)
    assert _ended_as(run(_tiny("method=toys:Keeper")), folder)


def _kill_in_forks(folder: Path, stride: int, kills: int) -> None:
    command = [sys.executable, str(Path(__file__).with_name("killing.py")), str(folder), str(stride), str(kills)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment())
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_killed_between_file_operations_and_at_random_moments(tmp_path: Path) -> None:
    _kill_in_forks(tmp_path, stride=5, kills=3)


@pytest.mark.slow
def test_killed_at_every_file_operation_and_at_many_moments(tmp_path: Path) -> None:
    _kill_in_forks(tmp_path, stride=1, kills=40)


def _count_rows(folder: Path) -> int:
    file = folder / "rounds.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


def _wait_for_rows(folder: Path, count: int, process: "subprocess.Popen[str]", seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < deadline:
        if _count_rows(folder) >= count:
            return
        time.sleep(0.005)
    pytest.fail(f"the run did not get to round {count}: {process.poll()}")


@pytest.mark.slow
@pytest.mark.parametrize("more", [(), ("engine.workers=2", "method=toys:Keeper")])
def test_killed_twenty_times_as_a_command(more: tuple[str, ...], tmp_path: Path) -> None:
    """Real processes, killed at random moments: most of them while they train, some while they start."""
    folder, chance, rounds = tmp_path / "run", random.Random(20), "train.rounds=4000"
    words = tiny(folder, rounds, *more)
    for _ in range(20):
        done = _count_rows(folder)
        process = start(*words, *(["--resume"] if folder.exists() else []))
        if chance.random() < 0.8:
            _wait_for_rows(folder, done + 1, process)
            time.sleep(chance.uniform(0, 0.3))
        else:
            time.sleep(chance.uniform(0, 3))
        process.kill()
        assert end(process).code == -signal.SIGKILL
    assert call(*words, "--resume", "--quiet").code == 0
    assert _ended_as(run(_tiny(rounds, *(word for word in more if "workers" not in word))), folder)


def _gone(processes: list[psutil.Process], seconds: float = 20) -> bool:
    _, alive = psutil.wait_procs(processes, timeout=seconds)
    return not alive


def _workers_of(process: "subprocess.Popen[str]") -> list[psutil.Process]:
    found = worker_processes(psutil.Process(process.pid))
    assert len(found) == 2
    return found


@pytest.mark.parametrize("way", ["auto", "spawn"])
def test_10_ctrl_c_stops_a_run_and_its_workers(way: str, tmp_path: Path) -> None:
    folder = tmp_path / "my run"
    process = start(*tiny(folder, "train.rounds=60", "engine.workers=2", f"engine.start={way}"))
    _wait_for_rows(folder, 2, process)
    workers = _workers_of(process)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all processes of the command
    said = end(process)
    assert said.code == 130
    assert said.out == ""
    *rounds, last = said.err.splitlines()
    assert last == f"semifed: stopped; go on with: semifed run --out {shlex.quote(str(folder))} --resume"
    assert all(line.startswith("round ") for line in rounds), said.err
    assert _gone(workers)
    summary = summary_in(folder)
    assert summary["status"] == "stopped"
    assert summary["rounds"] == len(rows_in(folder)) >= 2
    assert call("run", "--out", str(folder), "--resume", "--set", "engine.workers=1").code == 0
    assert _ended_as(run(_tiny("train.rounds=60")), folder)


def _spawned(process: psutil.Process) -> bool:
    """Whether a child is a worker by now: at first it looks like its parent, as every child does."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return "spawn_main" in str(process.cmdline())
    return False


def _deaf(process: psutil.Process) -> bool:
    """Whether a process has blocked Ctrl-C, as Linux tells."""
    status = Path(f"/proc/{process.pid}/status")
    blocked = next(line for line in status.read_text().splitlines() if line.startswith("SigBlk:"))
    return bool(int(blocked.split()[1], 16) & 1 << signal.SIGINT - 1)


@pytest.mark.slow
def test_10_ctrl_c_while_workers_start_is_as_quiet(tmp_path: Path) -> None:
    for delay in (0.0, 0.3, 1.0):
        folder = tmp_path / str(delay)
        process = start(*tiny(folder, "engine.workers=2", "engine.start=spawn"))
        workers: list[psutil.Process] = []
        while process.poll() is None and not workers:
            time.sleep(0.01)
            workers = [one for one in worker_processes(psutil.Process(process.pid)) if _spawned(one)]
        assert sys.platform != "linux" or all(map(_deaf, workers)), "from their first moment on"
        time.sleep(delay)
        os.killpg(process.pid, signal.SIGINT)
        said = end(process)
        assert said.code == 130
        assert said.line.startswith("semifed: stopped; go on with: ")
        assert _gone(workers)
        assert summary_in(folder)["status"] == "stopped"


@pytest.mark.slow
def test_workers_end_when_their_run_is_killed(tmp_path: Path) -> None:
    process = start(*tiny(tmp_path / "run", "train.rounds=2000", "engine.workers=2"))
    _wait_for_rows(tmp_path / "run", 1, process)
    workers = _workers_of(process)
    process.kill()
    gone = _gone(workers)
    for worker in () if gone else workers:
        worker.kill()
    process.communicate()
    assert gone


def _press(*delays: float) -> None:
    """Ctrl-C after each of these delays, from outside the thread that runs."""

    def press() -> None:
        for delay in delays:
            time.sleep(delay)
            os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=press, daemon=True).start()


def test_10_a_second_ctrl_c_ends_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one stops the run, whose last words take too long here; the second one does not wait for them."""
    run(_tiny("train.rounds=1"))  # what is imported by then is not imported when Ctrl-C comes
    ending = threading.Event()

    def for_ever(*_: object) -> None:
        ending.set()
        _press(0.2)
        time.sleep(60)

    monkeypatch.setattr(RunFolder, "sum_up", for_ever)
    began = time.monotonic()
    _press(0.5)
    said = call(*tiny(tmp_path / "run", "train.rounds=100000", "--quiet"))
    assert said.code == 130
    assert time.monotonic() - began < 20
    assert ending.is_set()
    monkeypatch.undo()
    assert call("run", "--out", str(tmp_path / "run"), "--resume", "--override", "--set", "train.rounds=1").code == 0


def test_10_ctrl_c_that_is_swallowed_ends_the_run_with_its_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Swallows:
        def __del__(self) -> None:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.1)

    def press(event: Event) -> None:
        if len(event.rows) == 2:
            Swallows()

    swallowed = list[object]()
    monkeypatch.setattr("sys.unraisablehook", swallowed.append)
    with pytest.raises(KeyboardInterrupt):
        run(_tiny(), tmp_path / "run", watch=press)
    assert len(swallowed) == 1
    assert summary_in(tmp_path / "run")["status"] == "stopped"
    assert len(rows_in(tmp_path / "run")) == 2
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_10_ctrl_c_before_anything_has_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("semifed.engine.assemble.load_data", stop)
    assert call(*tiny(tmp_path / "run")) == Said(130, "", "semifed: stopped before the run had begun\n")
    assert not any(tmp_path.iterdir())
