"""Files that are whole or not there."""

import os
from pathlib import Path

import pytest

from semifed.writing import replacing, write_whole


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_replaced_in_one_step(tmp_path: Path) -> None:
    path = tmp_path / "a file.bin"
    for content in (b"first", b"", b"\x00" * 100_000):
        write_whole(path, content)
        assert path.read_bytes() == content
        assert names(tmp_path) == ["a file.bin"]


def test_a_failure_leaves_the_old_file_and_no_remnant(tmp_path: Path) -> None:
    path = tmp_path / "x"
    write_whole(path, b"old")

    def interrupted() -> None:
        with replacing(path) as part:
            part.write_bytes(b"half")
            assert path.read_bytes() == b"old"
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    with pytest.raises(FileNotFoundError), replacing(path):
        pass
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["x"]


def test_a_disk_that_fails_at_the_last_moment_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x"
    write_whole(path, b"old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_whole(path, b"new")
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["x"]


def test_two_writers_have_names_of_their_own_unless_one_is_given(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with replacing(path) as one, replacing(path) as two:
        assert one != two
        assert one.parent == two.parent == tmp_path
        one.write_bytes(b"1")
        two.write_bytes(b"2")
    assert path.read_bytes() == b"1"  # the outer block ends last
    given = tmp_path / "x.partial"
    given.write_bytes(b"left by one that was killed")
    with replacing(path, given) as part:
        assert part == given
        part.write_bytes(b"3")
    assert names(tmp_path) == ["x"]


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_whole(tmp_path / "none" / "x", b"")
