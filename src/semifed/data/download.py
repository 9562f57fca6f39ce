"""Where data files are kept, and how a missing one is fetched: verified, retried, and in place only when whole."""

import hashlib
import os
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import IO, TYPE_CHECKING
from urllib import request
from urllib.error import HTTPError, URLError

from semifed.errors import DataError
from semifed.writing import replacing

if TYPE_CHECKING:
    from rich.progress import Progress

VARIABLE = "SEMIFED_DATA"
LARGEST = 256 * 2**20  # bytes; the largest official file has 182 million
PIECE = 2**18
TIMEOUT = 30.0  # seconds without a byte


@dataclass(frozen=True)
class RemoteFile:
    """A file of an official data set: its place below the data folder, its addresses, and its checksums."""

    path: str
    urls: tuple[str, ...]
    md5: str
    content_md5: str = ""  # of what is inside a gz, which stays the same when somebody packs it anew


def data_folder(data_dir: Path | None = None) -> Path:
    """The folder of the data files: the one given, else SEMIFED_DATA, else ~/.cache/semifed."""
    folder = data_dir or os.environ.get(VARIABLE)
    return Path(folder).expanduser() if folder else cache_folder()


def cache_folder() -> Path:
    """The user's own folder, for data files and for what is derived from files in a read-only place."""
    try:
        return Path.home() / ".cache" / "semifed"
    except RuntimeError as error:
        raise DataError(f"there is no home folder to keep data in: set {VARIABLE} to a folder") from error


def writable(folder: Path) -> bool:
    """Whether files may be added; a folder without write bits is left alone even by an administrator."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder.is_dir() and bool(folder.stat().st_mode & 0o222) and os.access(folder, os.W_OK)


def fetch(remote: RemoteFile, folder: Path) -> Path:
    """Download to the file's place below `folder`; every address is tried, and then once more."""
    target = folder / remote.path
    reason = f"{folder} is read-only"
    if writable(target.parent):
        for url in remote.urls * 2:
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                with replacing(target) as part, part.open("wb") as file:
                    _receive(url, remote.md5, file)
            except (OSError, HTTPException, ValueError) as error:
                reason = f"{url}: {_one_line(error)}"
            else:
                return target
    raise DataError(
        f"{target} is missing and was not downloaded ({reason}); put the file from {remote.urls[0]} there, "
        f"or set --data-dir or {VARIABLE} to a folder that holds {remote.path}"
    )


def _receive(url: str, md5: str, file: IO[bytes]) -> None:
    """Copy the answer into `file`, and object to one that is cut short, endless or not what was asked for."""
    digest = hashlib.md5(usedforsecurity=False)
    received = 0
    with _opener().open(url, timeout=TIMEOUT) as answer, _progress() as progress:
        if url.startswith("https:") and not answer.url.startswith("https:"):
            raise URLError(f"refused to be sent on to the unencrypted {answer.url}")
        announced = int(answer.headers.get("Content-Length") or 0)
        task = progress.add_task(url.rpartition("/")[2], total=announced or None)
        while piece := answer.read(PIECE):
            received += len(piece)
            if received > LARGEST:
                raise URLError(f"the answer is longer than {LARGEST:,} bytes")
            file.write(piece)
            digest.update(piece)
            progress.update(task, completed=received)
    if announced and received != announced:
        raise URLError(f"the connection ended after {received:,} of {announced:,} bytes")
    if digest.hexdigest() != md5:
        raise URLError(f"the answer has md5 {digest.hexdigest()}, wanted {md5}")


def _opener() -> request.OpenerDirector:
    """Knows http and https only: an address can never name a local file."""
    opener = request.OpenerDirector()
    opener.addheaders = [("User-Agent", "semifed")]
    for handler in (
        request.ProxyHandler(),
        request.HTTPHandler(),
        request.HTTPSHandler(),
        request.HTTPDefaultErrorHandler(),
        request.HTTPErrorProcessor(),
        request.UnknownHandler(),
        request.HTTPRedirectHandler(),
    ):
        opener.add_handler(handler)
    return opener


def _progress() -> "Progress":
    """A bar on standard error, and only where somebody watches."""
    from rich.console import Console  # noqa: PLC0415  most runs download nothing
    from rich.progress import DownloadColumn, Progress, TimeRemainingColumn  # noqa: PLC0415

    console = Console(stderr=True)
    columns = (*Progress.get_default_columns()[:2], DownloadColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def _one_line(error: Exception) -> str:
    reason = error.reason if isinstance(error, URLError) and not isinstance(error, HTTPError) else error
    return " ".join(str(reason).split()) or type(error).__name__
