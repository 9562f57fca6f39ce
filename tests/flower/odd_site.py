"""A site that misbehaves in one way, or waits so that a test can interfere: `odd_site.py MODE join ...`.

pause:ROUND:FILE   in that round says FILE.begun and goes on once FILE is there
slow:SECONDS       takes so long for every round
nan shape garbage  what it sends back
huge:MB            sends that many MB of noise
"""

import os
import sys
import time
from pathlib import Path

import torch

from semifed.cli import main
from semifed.engine.flower_client import Site
from semifed.engine.wire import Letter
from semifed.federation import joining
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
    if MODE == "huge":
        return Letter(reply.head, os.urandom(int(REST) * 10**6))
    if MODE == "garbage":
        return Letter(reply.head, b"\x00garbage" * 99)
    if MODE in ("nan", "shape"):
        tree = unpack(reply.body)
        name = next(iter(tree["target"]))
        value = tree["target"][name]
        tree["target"][name] = value * torch.nan if MODE == "nan" else value[:-1]
        return Letter(reply.head, pack(tree))
    return reply


vars(joining)["Site"] = OddSite
main(sys.argv[2:])
