"""Keys, refusals before any work, and the door."""

import contextlib
import re
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from semifed.cli import main
from semifed.engine.flower_client import SiteOptions
from semifed.errors import RunError, SettingError
from semifed.federation.addresses import is_loopback
from semifed.federation.explaining import explain
from semifed.federation.joining import join
from semifed.federation.keys import load_key, make_keys, site_keys
from semifed.federation.status import status

pytest.importorskip("flwr")


def test_keys_are_made_once_for_their_owner_alone_and_sites_can_be_added(tmp_path: Path) -> None:
    lines = make_keys(tmp_path, ["localhost", "10.0.0.1"], ["north"])
    assert [line.split(": ")[0] for line in lines] == [
        str(tmp_path / "ca.key"), str(tmp_path / "server"), str(tmp_path / "sites" / "north")
    ]  # fmt: skip
    private = list(tmp_path.rglob("*.key"))
    assert len(private) == 3
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in private)
    before = (tmp_path / "ca.key").read_bytes()
    make_keys(tmp_path, [], ["south"])
    assert (tmp_path / "ca.key").read_bytes() == before
    assert list(site_keys(tmp_path / "server")) == ["north", "south"]
    with pytest.raises(SettingError, match="--site south: has a key already"):
        make_keys(tmp_path, [], ["south"])
    with pytest.raises(SettingError, match="a name has letters"):
        make_keys(tmp_path, [], ["../x"])
    (tmp_path / "ca.key").chmod(0o644)
    with pytest.raises(SettingError, match="others may read this private key; run chmod 600"):
        load_key(tmp_path / "ca.key")


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["keys", "k", "--site", "a"], 2, "--host: say the name"),
        (["serve", "--out", "r", "--insecure", "--address", "0.0.0.0:8443"], 2, "--insecure: 0.0.0.0 is not this"),
        (["serve", "--out", "r", "--address", "nowhere"], 2, "--address nowhere: expected HOST:PORT"),
        (["serve", "--out", "r", "--set", "data=synthetic"], 2, "there is no site's key"),
        (["serve", "--out", "r", "--resume"], 2, "there is nothing to go on with"),
        (["join", "--server", "x", "--site", "a", "--data", "mnist5k"], 2, "--server x: expected HOST:PORT"),
        (
            ["join", "--server", "h.example:1", "--site", "a", "--data", "mnist5k", "--insecure"],
            2,
            "is not this machine",
        ),
        (["join", "--server", "localhost:1", "--site", "a", "--data", "mnist5k"], 2, "there is no such key"),
        (["status", "--server", "localhost:1"], 2, "there is no such key"),
    ],
)
def test_what_cannot_work_is_refused_before_any_work(
    words: list[str], code: int, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == code
    assert message in capsys.readouterr().err
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    ("host", "own"),
    [("localhost", True), ("127.0.0.1", True), ("::1", True), ("10.0.0.1", False), ("example.org", False)],
)
def test_loopback_is_this_machine_alone(host: str, own: bool) -> None:
    assert is_loopback(host) is own


class _Proxy(threading.Thread):
    """Answers every request with one line."""

    def __init__(self, line: str) -> None:
        super().__init__(daemon=True)
        self._line, self.socket = line, socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.socket.getsockname()[1]}"
        self.heard: list[bytes] = []

    def run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                with self.socket.accept()[0] as caller:
                    self.heard.append(caller.recv(4096))
                    caller.sendall(f"HTTP/1.1 {self._line}\r\ncontent-length: 0\r\n\r\n".encode())


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Proxy]:
    made = _Proxy("403 Forbidden")
    monkeypatch.setenv("HTTPS_PROXY", f"http://user:secret@{made.address}")
    for name in ("NO_PROXY", "no_proxy", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    made.start()
    yield made
    made.socket.close()


def _join(server: str, folder: Path, patience: float = 0.0) -> None:
    make_keys(folder / "keys", ["server.example"], ["a"])
    own = SiteOptions("a", "mnist5k", folder / "a")
    join(server, own, keys_folder=folder / "keys" / "sites" / "a", agree=lambda _: True, patience=patience)


def test_60_a_proxy_in_the_way_is_named_without_its_password(proxy: _Proxy, tmp_path: Path) -> None:
    told = f"server.example:8443: the proxy {proxy.address} does not let this site through (403 Forbidden)"
    with pytest.raises(RunError, match=re.escape(told) + ".*NO_PROXY=server.example") as caught:
        _join("server.example:8443", tmp_path, patience=3600)
    assert "secret" not in str(caught.value)
    assert proxy.heard[0].startswith(b"CONNECT server.example:8443")
    with pytest.raises(RunError, match=re.escape(told)):
        status("server.example:8443", tmp_path / "keys" / "sites" / "a")


def test_60_no_proxy_stands_before_this_machine_itself(proxy: _Proxy, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # without listening
        server = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(RunError, match=f"{server}: cannot be reached .ConnectError"):
            _join(server, tmp_path)
        with pytest.raises(RunError, match=f"{server}: cannot be reached .ConnectError"):
            status(server, tmp_path / "keys" / "sites" / "a")
    assert proxy.heard == []


def test_60_a_host_that_is_none_is_said(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"--server no-such-host\.invalid:8443: there is no such host"):
        _join("no-such-host.invalid:8443", tmp_path)


@pytest.mark.parametrize(
    ("text", "again"),
    [
        ("[Errno -2] Name or service not known", False),
        ("[Errno -3] Temporary failure in name resolution", True),  # a line that is down, as in a reconnection
        ("[SSL: CERTIFICATE_VERIFY_FAILED] certificate has expired", False),
        ("[Errno 111] Connection refused", True),
    ],
)
def test_what_may_pass_is_tried_again(text: str, again: bool) -> None:
    assert explain(OSError(text), "server.example:8443").again is again
