"""A link that dies is found out and made anew; a letter that a site lost, because it began anew, is sent again."""

import socket
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from flower.post import Post, make_sites
from flower.test_outsiders import Caller
from flower.test_seam import RUN, experiment, federate
from semifed import run
from semifed.engine.flower_server import Federation, FlowerClients, LinkLostError
from semifed.engine.wire import Letter, read_head, write_head
from semifed.federation.front import Door
from semifed.federation.link import FlowerLink
from semifed.results.record import Record


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


class Flower:
    """What Flower answers at its fleet interface to a node that comes."""

    def __init__(self, node: int, status: int = 200) -> None:
        from flwr.proto.fleet_pb2 import ActivateNodeResponse

        self.content, self.status_code = ActivateNodeResponse(node_id=node).SerializeToString(), status
        self.headers = {"content-type": "application/protobuf"}

    async def post(self, *_: Any, **__: Any) -> "Flower":
        return self


def come_in(door: Door, node: int, status: int = 200) -> int:
    door._client = Flower(node, status)
    return Caller("/v1/fleet/activate-node").call(door)


class Carrier(FlowerLink):
    """A link and its door in full, but for Flower: letters go to sites in this process, in the way of the relay."""

    def __init__(self, post: Post) -> None:
        self.post, self._nodes, self._sent = post, {site: 7 + n for n, site in enumerate(post.sites)}, {}
        self.door = Door("https://127.0.0.1:1", ssl.create_default_context(), 10**9, {}, dict)

    def _ask(self, head: dict[str, Any], blobs: list[bytes] | None = None) -> tuple[dict[str, Any], list[bytes]]:
        if head["do"] == "nodes":
            return {"nodes": [self._nodes[site] for site in self.post.online()]}, []
        if head["do"] == "send":
            sites, receipts = {node: site for site, node in self._nodes.items()}, list[str]()
            for node, text, blob in head["letters"]:
                letter = Letter(read_head(text), (blobs or [])[blob])
                receipts += self.post.send({sites[node]: letter}, head["seconds"]).values()
            return {"receipts": receipts}, []
        found, bodies = dict[str, Any](), list[bytes]()
        for receipt, reply in self.post.collect(head["receipts"]).items():
            assert isinstance(reply, Letter)
            found[receipt] = {"text": write_head(reply.head), "blob": len(bodies)}
            bodies.append(reply.body)
        return {"found": found}, bodies

    def close(self) -> None:
        self.post.close()

    def again(self, site: str) -> None:
        """The site is connected anew."""
        assert self.door is not None
        assert come_in(self.door, self._nodes[site]) == 200


def carried(link: Carrier, *assignments: str) -> Record:
    """A run over this link that fails if a round is not over by its first deadline, or nobody comes."""
    exp = experiment(
        "fedcon", "federation.deadline=60", "federation.patience=60", "federation.attempts=1", *assignments
    )
    federation = Federation(RUN, list(link.post.sites))
    return run(exp, clients=lambda assembly: FlowerClients(assembly, link, federation, poll=0.01))


def letters(link: Carrier, site: str) -> list[tuple[str, int | None]]:
    return [(letter.head["kind"], letter.head.get("round")) for to, letter in link.post.sent if to == site]


def same(one: Record, other: Record) -> None:
    for parameter, value in one.model.items():
        assert torch.equal(other.model[parameter], value)


@pytest.mark.parametrize("trained", [False, True])
def test_50_52_a_site_that_lost_its_letter_is_asked_again_long_before_the_deadline(
    trained: bool, tmp_path: Path
) -> None:
    steady = federate(experiment("fedcon"), make_sites(tmp_path / "one", 3))
    link, lost = Carrier(make_sites(tmp_path / "two", 3)), list[str]()

    def killed(site: str, letter: Letter) -> Letter | None:
        for receipt in lost if site == "b" else ():  # something comes after all, when nobody waits for it any more
            link.post._ready[receipt] = Letter({**letter.head, "examples": -1}, b"late")
        if site != "b" or letter.head.get("round") != 1 or lost:
            return letter
        lost.append(f"b-{link.post._number}")
        if not trained:  # killed before it had kept anything
            (tmp_path / "two" / "b" / RUN / "round-000001.safetensors").unlink()
        link.post.sites["b"] = make_sites(tmp_path / "two", 3).sites["b"]  # a new process with the same folder
        link.again("b")
        return None

    link.post.tamper = killed
    same(steady, carried(link))
    asked = [("invite", None), ("train", 0), *[("train", 1)] * 2, ("invite", None), ("train", 1), ("train", 2)]
    assert letters(link, "b") == [*asked, ("end", None)]


def test_52_a_site_killed_with_its_invitation_is_invited_again(tmp_path: Path) -> None:
    link, lost = Carrier(make_sites(tmp_path, 3)), list[Letter]()

    def killed(site: str, letter: Letter) -> Letter | None:
        if site != "b" or lost:
            return letter
        lost.append(letter)
        link.again("b")
        return None

    link.post.tamper = killed
    carried(link, "train.rounds=1")
    assert letters(link, "b") == [("invite", None)] * 2 + [("train", 0), ("end", None)]


def test_55_a_site_that_is_slow_is_not_asked_twice(tmp_path: Path) -> None:
    link, held = Carrier(make_sites(tmp_path, 3)), dict[str, Letter]()
    collect, polls = link.post.collect, 0

    def hold(site: str, letter: Letter) -> Letter | None:
        if site == "b" and letter.head.get("round") == 0:
            link.again("a")  # it is another one that is back
            assert link.door is not None
            assert come_in(link.door, link._nodes["b"], status=409) == 409  # and a second b is not let in
            held["b"] = letter
            return None
        return letter

    def collect_slowly(receipts: Any) -> Any:
        nonlocal polls
        polls += bool(held)
        if held and polls > 20:
            link.post._ready |= {receipt: held["b"] for receipt in receipts if receipt.startswith("b")}
            held.clear()
        return collect(receipts)

    link.post.tamper = hold
    vars(link.post)["collect"] = collect_slowly
    carried(link, "train.rounds=1")
    assert letters(link, "b") == [("invite", None), ("train", 0), ("end", None)]


def test_an_answer_that_came_before_its_site_was_gone_counts(tmp_path: Path) -> None:
    link = Carrier(make_sites(tmp_path, 3))

    def leave(site: str, letter: Letter) -> Letter:
        if letter.head["kind"] == "trained":
            link.again(site)
        return letter

    link.post.tamper = leave
    carried(link, "train.rounds=1")
    for site in "abc":
        assert letters(link, site) == [("invite", None), ("train", 0), ("end", None)]
