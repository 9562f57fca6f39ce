"""Whose fault an error is: raised in a user's own method or net, it is told with file and line, not as one of ours."""

import inspect
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from semifed.errors import OwnCodeError, SemifedError
from semifed.experiment import Experiment


@contextmanager
def blaming(experiment: Experiment) -> Iterator[None]:
    """Errors of a user's own method or net come out with the place in the user's file."""
    try:
        yield
    except SemifedError:
        raise
    except Exception as error:
        fault = own_fault(error, experiment.method, experiment.net)
        if fault is None:
            raise
        raise fault from error


def own_fault(error: Exception, *own: object) -> OwnCodeError | None:
    """The error in one line, if it passed through the file of a class that is not Semifed's or torch's."""
    place = place_of(error, *own)
    if place is None:
        return None
    problem = next(iter(str(error).strip().splitlines()), "no message")
    return OwnCodeError(f"{place}: {type(error).__name__}: {problem}")


def place_of(error: Exception, *own: object) -> str | None:
    """The last line of a user's own files that an error passed through."""
    files = {file for one in own for kind in type(one).__mro__ if (file := _file_of(kind))}
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in files]
    return f"{frames[-1].filename}, line {frames[-1].lineno}, in {frames[-1].name}" if frames else None


def _file_of(kind: type) -> str | None:
    """The file of a class, unless it is one that nobody here has written."""
    if kind.__module__.partition(".")[0] in ("semifed", "torch", "builtins"):
        return None
    try:
        return inspect.getfile(kind)
    except (TypeError, OSError):  # made in a session or by a program
        return None
