"""A server that is killed while it writes its third checkpoint, halfway through the file: `odd_server.py serve ...`."""

import os
import signal
import sys
from pathlib import Path

from semifed.cli import main
from semifed.results import files

whole, written = files.write_whole, list[str]()


def halfway(path: Path, data: bytes) -> None:
    if path.name.startswith("checkpoint"):
        written.append(path.name)
        if len(written) == 3:
            path.with_name(f".{path.name}.part").write_bytes(data[: len(data) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
    whole(path, data)


vars(files)["write_whole"] = halfway
main(sys.argv[1:])
