"""Kills a run exactly between two file operations, for every one of them; see test_resume.

    python killing.py FOLDER STRIDE

Children are forked from this process, which has everything imported and warm, so a kill costs a fraction of a
second. A child ends with os._exit, which no `finally` sees, before its n-th operation; before an fsync the file
also loses its last bytes, as it may on a kill while it is written. Then the run is resumed, killed once more on
the way, and resumed again. What does not end as the unbroken run is printed.
"""

import contextlib
import os
import stat
import sys
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


def _in_child(task: Callable[[], Any]) -> int:
    """The exit code of a task in a forked process."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        task()
    except BaseException as error:
        sys.stdout.write(f"{type(error).__name__}: {error}\n")
        sys.stdout.flush()
        os._exit(1)
    os._exit(0)


def _run(folder: Path, die_before: int = 0) -> int:
    """Begin a run or go on with it, as a person would; the exit code."""

    def task() -> None:
        resume = folder.exists()
        if die_before:
            _die_before(die_before, folder)
        run(EXPERIMENT, folder, resume=resume)

    return _in_child(task)


def _ends_well(folder: Path, wanted: tuple[Any, Any]) -> bool:
    with contextlib.suppress(OSError, ValueError):
        whole = not list(folder.glob("*.part*")) and summary_in(folder)["status"] == "finished"
        return whole and (rows_in(folder), summary_in(folder)["model"]) == wanted
    return False


def main(base: Path, stride: int) -> None:
    """Every `stride`-th operation, until a run has no more."""
    unbroken = base / "unbroken"
    run(EXPERIMENT, unbroken)
    wanted = rows_in(unbroken), summary_in(unbroken)["model"]
    number = 1
    while True:
        folder = base / str(number)
        first = _run(folder, number)
        if first == 0:
            break
        second = _run(folder, number * 7 % 30 + 1)
        last = _run(folder) if second == _KILLED else second
        if (first, last) != (_KILLED, 0) or not _ends_well(folder, wanted):
            sys.stdout.write(f"killed before operation {number}: {first} {second} {last}\n")
        number += stride
    sys.stdout.write(f"done {number}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
