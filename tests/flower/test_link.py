"""A link that dies while its relay tries on is found out, and made anew."""

import socket
import subprocess
import sys

import pytest

from semifed.engine.flower_server import LinkLostError
from semifed.federation.link import FlowerLink


def test_a_dead_link_is_not_waited_for_though_its_relay_lives() -> None:
    link, started = FlowerLink.__new__(FlowerLink), []
    ours, theirs = socket.socketpair()  # the relay's end stays open and says nothing
    link._relay, link._process = ours, subprocess.Popen([sys.executable, "-c", ""])
    link._process.wait()
    vars(link)["_stop"] = ours.close
    vars(link)["_start"] = lambda: started.append(True)
    with pytest.raises(LinkLostError):
        link.online()
    theirs.close()
    assert started == [True]
