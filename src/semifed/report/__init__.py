"""Reports of runs: one page to look at, and figures for papers."""

from collections.abc import Iterable
from pathlib import Path

from semifed.errors import RunError
from semifed.report.content import content
from semifed.report.page import page
from semifed.results.collection import collect
from semifed.writing import write_whole

__all__ = ["check_page", "write_report"]

_MARK = b'<meta name="generator" content="semifed '


def write_report(paths: Iterable[Path | str], out: Path | str, title: str = "Semifed report") -> Path:
    """Write one self-contained page of the runs in these folders, of runs or of sweeps."""
    runs, out = collect(paths), Path(out)
    if not runs:
        raise RunError("report: none of these folders holds a run that has begun; give the folder of one that has")
    check_page(out)
    text = page(content(runs), title)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_whole(out, text.encode())
    except OSError as error:
        raise RunError(f"{out}: cannot be written: {error.strerror}; give another --out") from None
    return out


def check_page(out: Path) -> None:
    """Whether a page can be put there; only an earlier page may be written over."""
    try:
        if out.is_dir():
            raise RunError(f"{out}: is a folder; give the name of a file, such as {out / 'report.html'}")
        if out.is_file() and out.stat().st_size and not _is_page(out):
            raise RunError(f"{out}: is there already and is no page of a report; give another --out")
    except (OSError, ValueError) as error:
        raise RunError(f"{out}: cannot be written: {getattr(error, 'strerror', error)}; give another --out") from None


def _is_page(path: Path) -> bool:
    with path.open("rb") as file:
        return _MARK in file.read(1000)
