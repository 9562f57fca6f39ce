"""One process a run: whatever happens to it, memory, a crash, a kill, happens to no other."""

import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

from filelock import FileLock, Timeout

from semifed.errors import OwnCodeError, RunError, SemifedError
from semifed.experiment import Experiment
from semifed.run import Event, run

_PATIENCE = 30.0  # seconds: a run whose sweep was killed lets go of its folder a moment later, and writes its last row


class Heard(NamedTuple):
    """What a run has said: how far it is, or how it ended."""

    rounds: int
    accuracy: float | None
    seconds: float  # the rounds of this call of the run, and no time before
    made: int  # rounds of this call
    failure: str | None = None
    done: bool = False


class RunProcess:
    """A run in a process of its own."""

    def __init__(self, experiment: Experiment, folder: Path, log: Path, data_dir: Path | None) -> None:
        context = multiprocessing.get_context(_way_to_start(experiment))
        self.pipe, theirs = context.Pipe(duplex=False)
        self._process: BaseProcess = context.Process(  # type: ignore[attr-defined]
            target=_work, args=(theirs, experiment, folder, log, data_dir)
        )
        self._process.start()
        theirs.close()
        self._log = log

    def hear(self) -> Heard:
        """The next word of the run; a process that is gone without one has failed."""
        try:
            word = self.pipe.recv()
            return Heard(*word)
        except (EOFError, OSError):
            self._process.join()
            return Heard(0, None, 0.0, 0, failure=_how_it_ended(self._process.exitcode, self._log))

    def ask_to_stop(self) -> None:
        """As Ctrl-C: the run writes a checkpoint and ends."""
        if self._process.pid and self._process.is_alive():
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGINT)

    def join(self, seconds: float) -> None:
        """Wait for the end of the process, for so long at most."""
        self._process.join(seconds)

    def close(self, patience: float = 0.0) -> None:
        """End the process, at once if it does not do so itself in time."""
        self._process.join(patience)
        if self._process.is_alive():
            self._process.kill()
        self._process.join()
        self._process.close()
        self.pipe.close()


def ready(processes: Sequence[RunProcess], seconds: float) -> list[RunProcess]:
    """Those that have something to say, waiting for a moment if nobody has."""
    pipes = wait([process.pipe for process in processes], seconds)
    return [process for process in processes if process.pipe in pipes]


def _way_to_start(experiment: Experiment) -> str:
    """A fork has everything imported, but only Linux does it well, and neither threads nor a GPU survive it."""
    engine = experiment.engine
    return "fork" if sys.platform == "linux" and engine.device == "cpu" and engine.threads == 1 else "spawn"


def _how_it_ended(code: int | None, log: Path) -> str:
    if code is not None and code < 0:
        reason = f"its process was ended by {signal.Signals(-code).name}"
        return reason + (", perhaps for want of memory" if -code == signal.SIGKILL else "")
    return f"its process ended with code {code}; {log} may say more"


def _work(pipe: Connection, experiment: Experiment, folder: Path, log: Path, data_dir: Path | None) -> None:
    """The life of the process."""
    if hasattr(os, "setpgrp"):
        os.setpgrp()  # Ctrl-C in a terminal is the sweep's to handle, which then asks each run to stop
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=_end_with_sweep, daemon=True).start()
    with log.open("a", encoding="utf-8") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.stdout, sys.stderr = (open(handle, "w", encoding="utf-8", closefd=False) for handle in (1, 2))  # noqa: SIM115
    try:
        word = _run(pipe, experiment, folder, data_dir)
    except KeyboardInterrupt:
        word = Heard(0, None, 0.0, 0, failure="stopped")
    except SemifedError as error:
        if isinstance(error, OwnCodeError):
            traceback.print_exc()
        word = Heard(0, None, 0.0, 0, failure=str(error))
    except BaseException as error:
        traceback.print_exc()
        word = Heard(0, None, 0.0, 0, failure=f"{type(error).__name__}: {error}; {log} has the traceback")
    sys.stdout.flush()
    sys.stderr.flush()
    with suppress(BrokenPipeError):
        pipe.send(tuple(word))
    pipe.close()
    os._exit(0)  # what the fork has brought along is not ours to tidy up


def _run(pipe: Connection, experiment: Experiment, folder: Path, data_dir: Path | None) -> Heard:
    before: int | None = None

    def tell(event: Event) -> None:
        nonlocal before
        before = len(event.rows) if before is None else before
        with suppress(BrokenPipeError):
            pipe.send(tuple(_said(event.rows, before)))

    if folder.exists():
        try:
            FileLock(folder / ".lock").acquire(timeout=_PATIENCE).lock.release()
        except Timeout:
            raise RunError(
                f"{folder}: is in use by another run; wait for it or end it, and call the sweep again"
            ) from None
    record = run(experiment, folder, resume=folder.exists(), data_dir=data_dir, watch=tell)
    return _said(record.rows, before or 0)._replace(done=True)


def _said(rows: Sequence[dict[str, Any]], before: int) -> Heard:
    tested: dict[str, Any] = next((row["models"] for row in reversed(rows) if row["models"]), {})
    accuracy = next((score["accuracy"] for score in tested.values()), None)
    return Heard(len(rows), accuracy, sum(row["seconds"] for row in rows[before:]), len(rows) - before)


def _end_with_sweep() -> None:
    """A sweep that is killed cannot end its runs; they end themselves, and go on with the sweep."""
    parent = multiprocessing.parent_process()
    if parent:
        parent.join()
        os._exit(1)
