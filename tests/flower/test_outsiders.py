"""What servers, sites and outsiders that mean harm, or die halfway, cannot do."""

import asyncio
import re
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from flower.post import make_sites
from flower.test_seam import BASE, RUN, experiment
from semifed.data import sources
from semifed.data.file_settings import FileSettings
from semifed.engine import site_data, wire
from semifed.engine.assemble import prepare
from semifed.engine.flower_client import Site
from semifed.engine.wire import Letter, LetterError
from semifed.errors import DataError, SettingError
from semifed.experiment import Experiment
from semifed.federation.node import Node
from semifed.payload import pack

pytest.importorskip("flwr", reason="Flower is not installed: pip install -e '.[federation]'")


def invitation(exp: Experiment, **changes: Any) -> Letter:
    task = site_data.task_of(sources.load("synthetic"))
    head = {"kind": "invite", "run": RUN, **wire.identity(exp.method), "experiment": wire.shared(exp)}
    return Letter({**head, "client": 0, "clients": 1, "task": task, **changes})


def site_of(folder: Path, said: list[str] | None = None) -> Site:
    own = make_sites(folder, 1).sites["a"]
    return Site(own._options, lambda _: True, (said if said is not None else []).append)


# a server that means harm


def test_an_experiment_with_another_method_than_it_says_imports_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bystander.py").write_text("raise SystemExit('it was imported')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    exp = experiment("fedsiam-d")
    for method in ('method = "bystander:Any"', '[method]\nname = "bystander:Any"', "", "method = 3"):
        answer = site_of(tmp_path).answer(invitation(exp, experiment=f"seed = 1\n{method}\n"))
        assert answer.head["kind"] == "refused"
        assert "another method than the invitation says" in answer.head["reason"]
    assert "bystander" not in sys.modules


@pytest.mark.parametrize("name", ["/etc", "../elsewhere", "..", "a/b", "a\\b", ""])
def test_folders_of_unlabelled_images_lie_in_the_folder_of_the_data(name: str) -> None:
    with pytest.raises(SettingError, match=r"files\.unlabelled: .* is not the name of a folder"):
        FileSettings(unlabelled=(name,))
    assert FileSettings(unlabelled=("no labels", "x.y")).unlabelled == ("no labels", "x.y")


@pytest.mark.parametrize(
    "error",
    [DataError("/data/north/jane-doe.png: is corrupt"), OSError("/data/jane-doe.png"), ZeroDivisionError("jane")],
)
def test_names_of_files_are_told_at_the_site_and_not_to_the_server(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(site_data, "load", fail)
    said: list[str] = []
    answer = site_of(tmp_path, said).answer(
        invitation(experiment("fedsiam-d", "scenario.clients=1", "train.clients_per_round=1"))
    )
    assert answer.head["kind"] in ("refused", "failed")
    assert answer.head["reason"] == f"{type(error).__name__} at the site, which has been told more"
    assert len(said) == 1
    assert "jane" in said[0]


def test_a_mistake_in_a_sites_own_method_is_told_there_with_its_line(tmp_path: Path) -> None:
    exp = Experiment.of(
        {**BASE, "method": "toys:Failing", "scenario": {"clients": 1}, "train": {"rounds": 1, "clients_per_round": 1}}
    )
    said: list[str] = []
    site = Site(site_of(tmp_path)._options._replace(own_method="toys:Failing"), lambda _: True, said.append)
    assert site.answer(invitation(exp)).head["kind"] == "joined"
    down = prepare(exp).net.init(0)
    answer = site.answer(Letter({"kind": "train", "run": RUN, "round": 0}, pack({"net": down})))
    assert answer.head["reason"] == "KeyError at the site, which has been told more"
    assert re.search(r"toys\.py, line \d+, in supervised: KeyError: 'nowhere'", said[0])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"client": None}, "client: 'None' is not a number"),
        ({"clients": True}, "clients: 'True' is not a number"),
        ({"client": -1}, "client: '-1' is not a number"),
        ({"client": 3, "clients": 3}, "client 3 of 3, which cannot be"),
        ({"clients": 10**9}, "client 0 of 1000000000, which cannot be"),
        ({"task": []}, "does not say what the task is"),
        ({"task": {"classes": []}}, "does not say the task's flips"),
    ],
)
def test_an_invitation_to_no_place_says_what_is_wrong_with_it(
    changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    answer = site_of(tmp_path).answer(invitation(experiment("fedsiam-d"), **changes))
    assert words in answer.head["reason"]


def test_the_server_cannot_have_copies_of_a_sites_data_made_nor_raise_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Experiment] = []
    good = site_data.load

    def load(spec: str, exp: Experiment, *more: Any) -> Any:
        seen.append(exp)
        return good(spec, exp, *more)

    monkeypatch.setattr(site_data, "load", load)
    words = (
        "scenario.clients=1",
        "train.clients_per_round=1",
        "data=folder:x",
        "files.cache=true",
        "federation.limit=1000000",
    )
    site = site_of(tmp_path)
    assert site.answer(invitation(experiment("fedsiam-d", *words))).head["kind"] == "joined"
    assert not seen[0].files.cache
    assert site._member is not None
    assert site._member.limit == 2**31


# a site that means harm, or dies halfway


class Grid:
    """Replies by receipt: a text, an error to be raised, or one that never comes."""

    def __init__(self, **replies: Any) -> None:
        self.replies, self.stuck = replies, threading.Event()

    def pull_messages(self, receipts: list[str]) -> Iterator[Any]:
        reply = self.replies.get(receipts[0])
        if reply == "stuck":
            self.stuck.wait(300)
            reply = "late"
        if isinstance(reply, Exception):
            raise reply
        if reply is not None:
            from semifed.federation.relay import letter_record

            record = letter_record(reply, b"body of " + reply.encode())
            yield SimpleNamespace(has_error=lambda: False, content=record)


def test_a_reply_that_does_not_arrive_holds_up_nobody_and_may_come_late() -> None:
    from semifed.federation.relay import Replies

    grid = Grid(a="one", b="stuck", c="three")
    replies = Replies(grid, patience=0.2)
    found: dict[str, Any] = {}
    started = time.monotonic()
    while set(found) != {"a", "c"}:
        answer, blobs = replies.collect({"a", "b", "c", "d"} - set(found))
        found |= {receipt: blobs[one["blob"]] for receipt, one in answer["found"].items()}
    assert time.monotonic() - started < 60
    assert found == {"a": b"body of one", "c": b"body of three"}
    grid.stuck.set()
    while "b" not in found:
        answer, blobs = replies.collect(["b"])
        found |= {receipt: blobs[one["blob"]] for receipt, one in answer["found"].items()}
    assert found["b"] == b"body of late"


class DecodeError(Exception):
    """As protobuf has one, which is no ValueError."""


def test_a_reply_that_cannot_be_read_is_garbled_and_a_broken_link_is_an_error() -> None:
    from semifed.federation.relay import Replies

    replies = Replies(Grid(a=DecodeError("x"), b="two"), patience=30)
    answer, _ = replies.collect(["a", "b"])
    assert answer["found"]["a"]["garbled"] == "DecodeError: x"
    assert answer["found"]["b"]["text"] == "two"
    with pytest.raises(ConnectionError):
        Replies(Grid(a=ConnectionError()), patience=30).collect(["a"])


# an outsider


class Caller:
    """One request to the door, and what came back."""

    def __init__(self, path: str, body: bytes | None = b"", **headers: str) -> None:
        named = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
        self.scope = {"type": "http", "path": path, "method": "POST", "headers": named}
        self._body, self.events = body, list[dict[str, Any]]()

    async def receive(self) -> dict[str, Any]:
        if self._body is None:
            await asyncio.sleep(300)
        return {"type": "http.request", "body": self._body}

    async def send(self, event: dict[str, Any]) -> None:
        self.events.append(event)

    def call(self, door: Any) -> int:
        asyncio.run(door(self.scope, self.receive, self.send))
        return int(self.events[0]["status"])


def _door() -> Any:
    import ssl

    from semifed.federation.front import Door

    return Door("https://127.0.0.1:1", ssl.create_default_context(), 10**6, {}, dict)


def test_a_request_that_never_ends_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    from semifed.federation import front

    monkeypatch.setattr(front, "BODY_SECONDS", 0.05)
    assert Caller("/v1/fleet/push-object", None).call(_door()) == 408


def test_challenges_cannot_be_used_up_or_made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    from semifed.federation import front

    door = _door()
    for _ in range(1500):
        assert Caller(front.STATUS).call(door) == 401
    fresh = door._sealed(f"{int(time.monotonic())}-x")
    assert door._is_ours(fresh)
    assert not door._is_ours(door._sealed(f"{int(time.monotonic()) - 61}-x"))
    for made_up in ("", "x", "1-x.y", fresh[:-1], _door()._sealed("1-x")):
        assert not door._is_ours(made_up)
    assert Caller(front.STATUS, semifed_challenge=fresh, semifed_site="a").call(door) == 403


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Flower's
def test_another_user_of_the_servers_machine_cannot_have_code_run(tmp_path: Path) -> None:
    import httpx
    import psutil

    from semifed.federation import keys
    from semifed.federation.link import FlowerLink

    link = FlowerLink({"north": keys.public_bytes(keys.new_key())}, tmp_path / "flower.log")
    try:
        assert link._process is not None
        family = [psutil.Process(link._process.pid), *psutil.Process(link._process.pid).children(recursive=True)]
        for path in ("control/start-run", "control/register-node", "control/list-runs", "control/show-federation"):
            answer = httpx.post(f"{link.address}/v1/{path}", verify=link.verify, trust_env=False, timeout=60)
            assert answer.status_code == 403, path
        assert httpx.get(f"{link.address}/docs", verify=link.verify, trust_env=False, timeout=60).status_code == 403
        assert list(link.online()) == []
    finally:
        link.close()
    _, left = psutil.wait_procs(family, timeout=60)
    assert not left


class Announced(NamedTuple):
    """What Flower answers to a site that asks for a piece of a message."""

    object_found: bool
    object_available: bool
    object_content: bytes = b""


class Later:
    """A link that has a piece only when it is asked for the third time, or not at all."""

    def __init__(self, *answers: Announced) -> None:
        self._answers = list(answers)

    def PullObject(self, request: object) -> Announced:  # noqa: N802  as Flower calls it
        return self._answers.pop(0)


def test_a_piece_that_is_announced_before_it_is_there_is_waited_for() -> None:
    node: Any = object.__new__(Node)
    node._poll = 0.0
    node._client = Later(Announced(True, False), Announced(True, False), Announced(True, True, b"piece"))
    assert node._pull(None) == b"piece"
    node._client = Later(Announced(False, False))
    with pytest.raises(LetterError, match="did not arrive"):
        node._pull(None)


# what is too much


def test_a_server_cannot_make_a_site_read_more_than_a_piece() -> None:
    import httpx

    from semifed.federation.answers import be_careful
    from semifed.federation.bounds import LARGEST_PIECE

    read: list[int] = []

    def endless() -> Iterator[bytes]:
        for number in range(100):
            read.append(number)
            yield bytes(2**20)

    answers = {
        "/fits": httpx.Response(200, content=bytes(100)),
        "/said": httpx.Response(200, headers={"content-length": str(3 * 10**9)}, content=endless()),
        "/unsaid": httpx.Response(200, content=endless()),
        "/zipped": httpx.Response(200, headers={"content-encoding": "gzip"}, content=endless()),
        "/away": httpx.Response(307, headers={"location": "http://elsewhere/fits"}),
    }
    with httpx.Client(transport=httpx.MockTransport(lambda request: answers[request.url.path])) as client:
        be_careful(client)
        assert len(client.post("http://server/fits").content) == 100
        with pytest.raises(
            LetterError, match=f"an answer of 3,000,000,000 bytes is over the limit of {LARGEST_PIECE:,}"
        ):
            client.post("http://server/said")
        with pytest.raises(LetterError, match="compressed"):
            client.post("http://server/zipped")
        assert read == []
        with pytest.raises(LetterError, match="an answer is over the limit of 8,388,608 bytes"):
            client.post("http://server/unsaid")
        assert len(read) == 9
        assert client.post("http://server/away").status_code == 307


def folded(times: int) -> dict[str, bytes]:
    """An array of one piece of noise that it names so often, as Flower would send it."""
    import json

    from flwr.app import Array
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

    array = Array("uint8", (1000,), "semifed", bytes(1000))
    contents = {name: part.deflate() for name, part in get_all_nested_objects(array).items()}
    head, _, body = contents[array.object_id].partition(b"\0")
    told = json.dumps({**json.loads(body), "arraychunk_ids": [0] * times}).encode()
    contents[array.object_id] = b" ".join([*head.split(b" ")[:2], str(len(told)).encode()]) + b"\0" + told
    return contents


def test_a_piece_that_is_named_a_million_times_is_not_unfolded() -> None:
    from semifed.federation.bounds import check_unfolded

    check_unfolded(folded(3), 10_000)
    with pytest.raises(LetterError, match=r"unfolds into \d+,\d+,\d+,\d+ bytes, over the limit of 10,000"):
        check_unfolded(folded(10**6), 10_000)


def test_nor_at_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    from flwr.proto.message_pb2 import PushObjectRequest
    from flwr.proto.node_pb2 import Node as FlowerNode

    door = _door()

    def push(content: bytes, node: int = 7) -> int:
        request = PushObjectRequest(node=FlowerNode(node_id=node), run_id=1, object_content=content)
        return Caller("/v1/fleet/push-object", request.SerializeToString()).call(door)

    small, bomb = (list(folded(times).values())[-1] for times in (1, 10**6))
    assert push(small) == 503  # it would go on to a link, which is not there
    assert (door._sent, door._unfolded) == ({7: 0}, {7: 0})
    assert push(bomb) == 413
    assert set(door.over) == {7}
    assert push(small) == 413
    assert push(small, 8) == 503
    door.asked(7)
    assert push(small) == 503
    for nonsense in (b"", b"Array  9\0{}", b"Array  9\0" + b"[" * 10**5, b"\xff\xfe"):
        assert push(nonsense, 9) == 413
