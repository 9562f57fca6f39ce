"""A server to which something happens: `odd_server.py MODE serve ...`.

checkpoint   is killed while it writes its third checkpoint, halfway through the file
late:FILE    does not look for answers while FILE is there
"""

import os
import signal
import sys
import time
from collections.abc import Collection
from pathlib import Path

from semifed.cli import main
from semifed.engine.local import Absent
from semifed.engine.wire import Letter
from semifed.federation import serving
from semifed.federation.link import FlowerLink
from semifed.results import files

MODE, _, REST = sys.argv[1].partition(":")
whole, written = files.write_whole, list[str]()


def halfway(path: Path, data: bytes) -> None:
    if path.name.startswith("checkpoint"):
        written.append(path.name)
        if len(written) == 3:
            path.with_name(f".{path.name}.part").write_bytes(data[: len(data) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
    whole(path, data)


class LateLink(FlowerLink):
    """Flower says of a site that it is gone only if it is asked while the site is gone."""

    def collect(self, receipts: Collection[str]) -> dict[str, Letter | Absent]:
        while Path(REST).exists():
            time.sleep(0.05)
        return super().collect(receipts)


if MODE == "checkpoint":
    vars(files)["write_whole"] = halfway
if MODE == "late":
    vars(serving)["FlowerLink"] = LateLink
main(sys.argv[2:])
