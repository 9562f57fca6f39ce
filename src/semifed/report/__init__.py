"""Reports of runs: one page to look at, and figures for papers."""

from collections.abc import Iterable
from pathlib import Path

from semifed.errors import RunError
from semifed.report.content import content
from semifed.report.page import page
from semifed.results.collection import collect
from semifed.writing import write_whole

__all__ = ["write_report"]


def write_report(paths: Iterable[Path | str], out: Path | str, title: str = "Semifed report") -> Path:
    """Write one self-contained page of the runs in these folders, of runs or of sweeps."""
    runs, out = collect(paths), Path(out)
    if not runs:
        raise RunError("report: none of these folders holds a run that has begun; give the folder of one that has")
    text = page(content(runs), title)
    if out.is_dir():
        raise RunError(f"{out}: is a folder; give the name of a file, such as {out / 'report.html'}")
    try:
        write_whole(out, text.encode())
    except OSError as error:
        raise RunError(f"{out}: cannot be written: {error.strerror}; give another --out") from None
    return out
