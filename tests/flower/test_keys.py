"""Keys, refusals before any work, and the door."""

import stat
from pathlib import Path

import pytest

from semifed.cli import main
from semifed.errors import SettingError
from semifed.federation.keys import load_key, make_keys, site_keys
from semifed.federation.serving import is_loopback

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
