"""A site that misbehaves in one way, or waits so that a test can interfere: `odd_site.py MODE join ...`.

pause:ROUND:FILE   in that round says FILE.begun and goes on once FILE is there
slow:SECONDS       takes so long for every round
nan shape garbage  what it sends back
long count old     an update a million times too long, more images than there are, an answer to an earlier round
twice              sends every answer two times
version            is of another version of semifed
huge:MB            sends that many MB of noise
"""

import contextlib
import os
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import torch

from semifed.cli import main
from semifed.engine import wire
from semifed.engine.flower_client import Site
from semifed.engine.wire import Letter
from semifed.federation import joining
from semifed.federation.node import Node
from semifed.params import tree_map
from semifed.payload import pack, unpack

MODE, _, REST = sys.argv[1].partition(":")


class OddSite(Site):
    """Answers as the mode says."""

    def answer(self, letter: Letter) -> Letter:
        if letter.head["kind"] == "train" and MODE == "pause":
            number, _, name = REST.partition(":")
            if letter.head["round"] == int(number) and not Path(name).exists():
                Path(name + ".begun").touch()
                while not Path(name).exists():
                    time.sleep(0.05)
        if letter.head["kind"] == "train" and MODE == "slow":
            time.sleep(float(REST))
        reply = super().answer(letter)
        return spoil(reply) if reply.head["kind"] == "trained" else reply


def spoil(reply: Letter) -> Letter:
    head, body = reply
    match MODE:
        case "huge":
            body = os.urandom(int(REST) * 10**6)
        case "garbage":
            body = b"\x00garbage" * 99
        case "count":
            head = {**head, "examples": 10**15}
        case "old":
            head = {**head, "round": head["round"] - 1}
        case "long":
            body = pack(tree_map(lambda leaf: leaf * 1e6, unpack(body)))
        case "nan" | "shape":
            tree = unpack(body)
            name = next(iter(tree["target"]))
            value = tree["target"][name]
            tree["target"][name] = value * torch.nan if MODE == "nan" else value[:-1]
            body = pack(tree)
    return Letter(head, body)


class TwiceNode(Node):
    """Says everything two times; what the server makes of the second is its own business."""

    def _reply(self, message: Any, letter: Letter) -> None:
        super()._reply(message, letter)
        with contextlib.suppress(httpx.HTTPStatusError):
            super()._reply(message, letter)
            print("said twice", file=sys.stderr, flush=True)  # noqa: T201


vars(joining)["Site"] = OddSite
if MODE == "twice":
    vars(joining)["Node"] = TwiceNode
if MODE == "version":
    vars(wire)["__version__"] = "9.9.9"
main(sys.argv[2:])
