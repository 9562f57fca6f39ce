"""A server that is killed while it writes its third checkpoint, halfway through the file: `odd_server.py serve ...`."""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from semifed.cli import main
from semifed.results import files

whole: Callable[..., None] = files.write_whole
written: list[str] = []


def halfway(path: Path, data: bytes, part: Path | None = None) -> None:
    if path.name.startswith("checkpoint"):
        written.append(path.name)
        if len(written) == 3:
            (part or path.with_name(f".{path.name}.part")).write_bytes(data[: len(data) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
    whole(path, data, part)


vars(files)["write_whole"] = halfway
main(sys.argv[1:])
