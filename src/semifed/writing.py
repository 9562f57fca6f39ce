"""Files that are whole or not there: written under another name, forced to disk, renamed."""

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def replacing(target: Path, part: Path | None = None) -> Iterator[Path]:
    """A name to write to; it takes the place of `target` if the block ends well, and is removed if it does not.

    The name is new each time, so that two processes do not write into each other's file. Who has the folder
    to himself gives `part`, so that being killed again and again leaves one remnant at most.
    """
    part = part or target.with_name(f".{target.name}.{uuid.uuid4().hex}.part")
    try:
        yield part
        with part.open("rb+") as file:
            os.fsync(file.fileno())
        part.replace(target)
        _sync_folder(target.parent)
    finally:
        part.unlink(missing_ok=True)


def write_whole(path: Path, data: bytes, part: Path | None = None) -> None:
    """Write a file so that it never exists in part, whatever happens meanwhile."""
    with replacing(path, part) as place:
        place.write_bytes(data)


def _sync_folder(folder: Path) -> None:
    """Make the renaming itself durable, where the system lets a folder be opened (Windows does not)."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
