"""Fetching a file from a server on this machine that misbehaves in every way the real ones do."""

import dataclasses
import gzip
import hashlib
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from semifed.data import download
from semifed.data.download import RemoteFile, data_folder, fetch, writable
from semifed.data.files import IdxFiles
from semifed.data.sources import SOURCES, load
from semifed.errors import DataError

CONTENT = bytes(range(256)) * 40


class Server(ThreadingHTTPServer):
    """Answers each request with the next of `answers`: (status, announced length, body)."""

    answers: ClassVar[list[tuple[int, int, bytes]]] = []
    asked: ClassVar[list[str]] = []


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        Server.asked.append(self.path)
        status, length, body = Server.answers.pop(0)
        self.send_response(status)
        if status == 302:
            self.send_header("Location", "file:///etc/hostname")
        if length:
            self.send_header("Content-Length", str(length))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Tests are quiet."""


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("no_proxy", "*")
    Server.answers, Server.asked = [], []
    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def remote(*urls: str) -> RemoteFile:
    return RemoteFile("Set/raw/file.gz", urls, hashlib.md5(CONTENT, usedforsecurity=False).hexdigest())


def good() -> tuple[int, int, bytes]:
    return 200, len(CONTENT), CONTENT


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_a_file_is_fetched_to_its_place(address: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    Server.answers = [good()]
    target = fetch(remote(f"{address}/file.gz"), tmp_path)
    assert target == tmp_path / "Set" / "raw" / "file.gz"
    assert target.read_bytes() == CONTENT
    assert files(tmp_path) == [target]
    assert capfd.readouterr() == ("", "")  # no bar where nobody watches


@pytest.mark.parametrize(
    "bad",
    [
        (200, len(CONTENT), CONTENT[:1000]),
        (200, 0, CONTENT[:1000]),
        (200, len(CONTENT), b"x" * len(CONTENT)),
        (500, 5, b"sorry"),
    ],
    ids=["truncated", "truncated without a length", "wrong content", "server error"],
)
def test_a_bad_answer_is_thrown_away_and_asked_for_again(
    address: str, tmp_path: Path, bad: tuple[int, int, bytes]
) -> None:
    Server.answers = [bad, good()]
    target = fetch(remote(f"{address}/file.gz"), tmp_path)
    assert target.read_bytes() == CONTENT
    assert files(tmp_path) == [target]
    assert len(Server.asked) == 2


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ((200, len(CONTENT), CONTENT[:1000]), "ended after 1,000 of 10,240 bytes"),
        ((200, len(CONTENT), b"x" * len(CONTENT)), "wanted " + remote().md5),
        ((404, 2, b"no"), "404"),
        ((302, 0, b""), "file:"),
    ],
    ids=["truncated", "wrong content", "not there", "sent on to a local file"],
)
def test_an_answer_that_stays_bad_is_never_used(
    address: str, tmp_path: Path, bad: tuple[int, int, bytes], reason: str
) -> None:
    Server.answers = [bad, bad]
    with pytest.raises(DataError, match=reason) as caught:
        fetch(remote(f"{address}/file.gz"), tmp_path)
    assert "\n" not in str(caught.value)
    assert not files(tmp_path)
    assert len(Server.asked) == 2


def test_the_next_mirror_is_asked(address: str, tmp_path: Path) -> None:
    Server.answers = [(404, 2, b"no"), good()]
    fetch(remote(f"{address}/first/file.gz", f"{address}/second/file.gz"), tmp_path)
    assert Server.asked == ["/first/file.gz", "/second/file.gz"]


def test_an_endless_answer_is_cut_off(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "LARGEST", 5000)
    Server.answers = [(200, 0, CONTENT)] * 2
    with pytest.raises(DataError, match="longer than 5,000 bytes"):
        fetch(remote(f"{address}/file.gz"), tmp_path)
    assert not files(tmp_path)


def test_offline_says_which_file_to_put_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")
    with pytest.raises(DataError) as caught:
        fetch(remote("http://127.0.0.1:9/file.gz"), tmp_path)
    place, address = tmp_path / "Set" / "raw" / "file.gz", "http://127.0.0.1:9/file.gz"
    for part in (f"{place} is missing", f"put the file from {address} there", "SEMIFED_DATA", "--data-dir"):
        assert part in str(caught.value)
    assert not files(tmp_path)


def test_an_address_of_a_local_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="file"):
        fetch(remote("file:///etc/hostname"), tmp_path)


def test_an_interrupted_download_leaves_nothing(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(download, "_receive", interrupt)
    with pytest.raises(KeyboardInterrupt):
        fetch(remote(f"{address}/file.gz"), tmp_path)
    assert not files(tmp_path)


def test_load_fetches_only_what_is_missing(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = bytes((0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 28, 0, 0, 0, 28)) + bytes(2 * 28 * 28)
    labels = bytes((0, 0, 8, 1, 0, 0, 0, 2, 4, 9))
    remotes = []
    for name, content in (("a", images), ("b", labels), ("c", images), ("d", labels)):
        packed = gzip.compress(content, mtime=0)
        md5 = hashlib.md5(packed, usedforsecurity=False).hexdigest()
        remotes.append(RemoteFile(f"MNIST/raw/{name}.gz", (f"{address}/{name}.gz",), md5))
        Server.answers.append((200, len(packed), packed))
    described = dataclasses.replace(SOURCES["mnist"], files=IdxFiles(tuple(remotes), (2, 2)))
    monkeypatch.setitem(SOURCES, "mnist", described)
    (tmp_path / "MNIST").mkdir()
    (tmp_path / "MNIST" / "b").write_bytes(labels)
    del Server.answers[1]
    assert load("mnist", tmp_path).labels.tolist() == [4, 9, 4, 9]
    assert Server.asked == ["/a.gz", "/c.gz", "/d.gz"]
    load("mnist", tmp_path)
    assert len(Server.asked) == 3


@pytest.mark.skipif(os.name == "nt", reason="folders have no write bits there")
def test_a_read_only_folder_is_left_alone(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    try:
        assert not writable(tmp_path / "below")
        with pytest.raises(DataError, match="read-only"):
            fetch(remote("http://127.0.0.1:9/file.gz"), tmp_path)
    finally:
        tmp_path.chmod(0o755)
    assert not files(tmp_path)


def test_the_folder_is_the_argument_then_the_variable_then_the_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEMIFED_DATA", str(tmp_path / "variable"))
    assert data_folder(tmp_path) == tmp_path
    assert data_folder() == tmp_path / "variable"
    monkeypatch.setenv("SEMIFED_DATA", "")
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    assert data_folder() == tmp_path / ".cache" / "semifed"
