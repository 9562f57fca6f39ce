"""Kills a run in forked children, again and again, and sees whether it still ends as the unbroken run; for test_resume.

    python killing.py FOLDER STRIDE KILLS

First at every STRIDE-th file operation: a child ends with os._exit, which no `finally` sees, before its n-th
operation, and before an fsync the file also loses its last bytes, as it may when a kill comes while it is written.
The run is resumed, killed once more on the way, and resumed again. Then with kill -9 at KILLS random moments, in
a run whose writing is slowed down. Forked from one process that has everything imported and warm, a kill costs a
fraction of a second. Only what does not end well is printed.
"""

import contextlib
import os
import random
import signal
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from semifed import Experiment, run
from toys import TINY, rows_in, summary_in

EXPERIMENT = Experiment.read(None, [*TINY, "method=toys:Keeper", "train.rounds=2", "train.checkpoint_every=1"])
_FILE_EVENTS = ("open", "os.rename", "os.remove", "os.mkdir")
_KILLED = 9


def _die_before(number: int, folder: Path) -> None:
    """End this process before its n-th operation on a file of the folder."""
    left = number
    sync = os.fsync

    def count(torn: int | None = None) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            if torn is not None and stat.S_ISREG(os.fstat(torn).st_mode):
                os.ftruncate(torn, max(os.fstat(torn).st_size - 5, 0))
            os._exit(_KILLED)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in _FILE_EVENTS and str(arguments[0]).startswith(str(folder)):
            count()

    def fsync(handle: Any) -> None:
        count(handle)
        sync(handle)

    sys.addaudithook(hook)
    mock.patch.object(os, "fsync", fsync).start()


def _fork(folder: Path, before: Callable[[], None]) -> int:
    """A child that begins a run or goes on with it, as a person would; its id."""
    child = os.fork()
    if child:
        return child
    try:
        resume = folder.exists()
        before()
        run(EXPERIMENT, folder, resume=resume)
    except BaseException as error:
        sys.stdout.write(f"{type(error).__name__}: {error}\n")
        sys.stdout.flush()
        os._exit(1)
    os._exit(0)


def _wait(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _run(folder: Path, die_before: int = 0) -> int:
    return _wait(_fork(folder, lambda: _die_before(die_before, folder) if die_before else None))


def _write_slowly() -> None:
    sync = os.fsync

    def slowly(handle: Any) -> None:
        sync(handle)
        time.sleep(0.01)

    mock.patch.object(os, "fsync", slowly).start()


def _ends_well(folder: Path, wanted: tuple[Any, Any]) -> bool:
    with contextlib.suppress(OSError, ValueError):
        whole = not list(folder.glob("*.part*")) and summary_in(folder)["status"] == "finished"
        return whole and (rows_in(folder), summary_in(folder)["model"]) == wanted
    return False


def kill_at_every_operation(base: Path, stride: int, wanted: Any) -> None:
    """Until a run has no more operations."""
    number = 1
    while (first := _run(folder := base / str(number), number)) != 0:
        second = _run(folder, number * 7 % 30 + 1)
        last = _run(folder) if second == _KILLED else second
        if (first, last) != (_KILLED, 0) or not _ends_well(folder, wanted):
            sys.stdout.write(f"killed before operation {number}: {first} {second} {last}\n")
        number += stride


def kill_at_random(base: Path, kills: int, wanted: Any) -> None:
    """So many times; a run that is done before its kill comes makes room for another."""
    chance, number, done = random.Random(kills), 0, 0
    while done < kills:
        folder = base / f"random-{number}"
        child = _fork(folder, _write_slowly)
        time.sleep(chance.uniform(0, 0.4))
        os.kill(child, signal.SIGKILL)
        killed = _wait(child) == -signal.SIGKILL
        done += killed
        if not killed or done == kills:
            if _run(folder) != 0 or not _ends_well(folder, wanted):
                sys.stdout.write(f"{folder} does not end as the unbroken run\n")
            number += 1


def main(base: Path, stride: int, kills: int) -> None:
    """Both, against one unbroken run."""
    run(EXPERIMENT, base / "unbroken")
    wanted = rows_in(base / "unbroken"), summary_in(base / "unbroken")["model"]
    kill_at_every_operation(base, stride, wanted)
    kill_at_random(base, kills, wanted)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
