"""Checkpoints that are corrupt, foreign, missing or of another time: a run never goes on from what is not its past."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from semifed import Experiment, run
from semifed.data.scenario import Scenario
from semifed.errors import RunError
from semifed.params import flatten
from semifed.results import checkpoint
from semifed.results.files import digest, read_tensors, write_tensors
from toys import TINY, call, refused, same_end, sets, stop_after

pytest_plugins = ("folders",)

CHECKPOINT, PREVIOUS = "checkpoint.safetensors", "checkpoint.previous.safetensors"


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def _no_checkpoint_at_all(path: Path) -> None:
    shutil.copy(path.with_name("split.safetensors"), path)


def _model(path: Path) -> None:
    shutil.copy(path.with_name(PREVIOUS), path)
    tensors, _ = read_tensors(path)
    write_tensors(path, tensors, {"semifed": "0.1.0"})


def _text(path: Path) -> None:
    path.write_text("not even tensors")


def _from_another_run(path: Path) -> None:
    other = path.parent.parent / "other"
    with pytest.raises(KeyboardInterrupt):
        run(Experiment.read(None, [*TINY, "seed=7"]), other, watch=stop_after(3))
    shutil.copy(other / CHECKPOINT, path)


def _nothing(path: Path) -> None:
    path.unlink()


SPOIL = [_flip, _cut, _no_checkpoint_at_all, _model, _text, _from_another_run, _nothing]


@pytest.mark.parametrize("spoil", SPOIL)
def test_65_a_bad_checkpoint_is_named_and_the_one_before_it_offered(
    spoil: Callable[[Path], None], stopped: Path, finished: Path
) -> None:
    spoil(stopped / CHECKPOINT)
    line = refused(stopped)
    assert str(stopped / CHECKPOINT) in line
    assert "the checkpoint before it, of round 2, is good: --resume --previous" in line
    bad = (stopped / CHECKPOINT).read_bytes() if (stopped / CHECKPOINT).exists() else None
    assert call("run", "--out", str(stopped), "--resume", "--previous").code == 0
    assert same_end(stopped, finished)
    assert call("run", "--out", str(stopped), "--resume").code == 0
    aside = stopped / "checkpoint.aside.safetensors"
    assert (aside.read_bytes() if aside.exists() else None) == bad, "it may be someone's only copy"


@pytest.mark.parametrize("spoil", SPOIL)
def test_65_two_bad_checkpoints_and_the_run_does_not_start_from_zero(
    spoil: Callable[[Path], None], stopped: Path
) -> None:
    spoil(stopped / CHECKPOINT)
    _text(stopped / PREVIOUS)
    line = refused(stopped)
    assert str(stopped / CHECKPOINT) in line
    assert "--previous" not in line
    assert "start the run anew in another folder" in line
    assert str(stopped / PREVIOUS) in refused(stopped, "--previous")


@pytest.mark.parametrize("done", [0, 1, 2])
def test_65_going_back_may_be_disturbed(done: int, stopped: Path, finished: Path) -> None:
    """By a kill after none, one or both of the renamings that make the previous checkpoint the newest."""
    _flip(stopped / CHECKPOINT)
    renamings = [(CHECKPOINT, "checkpoint.aside.safetensors"), (PREVIOUS, CHECKPOINT)]
    for before, after in renamings[:done]:
        (stopped / before).rename(stopped / after)
    words = ["run", "--out", str(stopped), "--resume"]
    if done < 2:
        assert "is good: --resume --previous" in refused(stopped)
        words.append("--previous")
    assert call(*words).code == 0
    assert same_end(stopped, finished)


def test_65_no_checkpoint_left(stopped: Path) -> None:
    for path in stopped.glob("checkpoint*"):
        path.unlink()
    assert f"{stopped / CHECKPOINT}: there is no such file" in refused(stopped)


def test_65_every_flipped_byte_of_the_head_is_noticed(stopped: Path) -> None:
    """The head has names, shapes and facts; the numbers after it are under the same checksum."""
    path, split = stopped / CHECKPOINT, Scenario.load(stopped / "split.safetensors").digest()
    data = path.read_bytes()
    good = checkpoint.load(stopped, split, previous=False)
    for place in range(0, 8 + int.from_bytes(data[:8], "little"), 7):
        path.write_bytes(data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :])
        try:
            found = checkpoint.load(stopped, split, previous=False)
        except RunError:
            continue
        assert good is not None
        assert found is not None
        assert digest(flatten(found.state)) == digest(flatten(good.state))
        assert (found.round, found.experiment) == (good.round, good.experiment)


@pytest.mark.parametrize(("format", "version"), [("1", "0.1.0"), ("3", "3.1.4")])
def test_66_another_format_is_refused_with_its_version(format: str, version: str, stopped: Path) -> None:
    tensors, facts = read_tensors(stopped / CHECKPOINT)
    write_tensors(stopped / CHECKPOINT, tensors, {**facts, "format": format, "semifed": version})
    line = refused(stopped)
    assert f"is of format {format}, written by semifed {version}" in line
    assert "with format 2: go on with that version" in line


def test_rounds_that_were_edited_are_noticed(stopped: Path) -> None:
    file = stopped / "rounds.jsonl"
    text = file.read_text()
    file.write_text(text.replace('"round": 3', '"round": 3 '))
    assert "does not belong to the rounds.jsonl and split.safetensors beside it" in refused(stopped)
    file.write_text("".join(text.splitlines(keepends=True)[:1]))
    assert f"{file}: has 1 rounds, but {CHECKPOINT} is of round 3" in refused(stopped)
    file.write_bytes(b"\0" * 100)
    assert f"{file}: has 0 rounds" in refused(stopped)
    file.unlink()
    assert f"{file}: cannot be read" in refused(stopped)


def test_killed_between_the_two_renamings_of_a_checkpoint(stopped: Path, finished: Path) -> None:
    (stopped / CHECKPOINT).rename(stopped / "checkpoint.next.safetensors")
    heard: list[int] = []
    run(out=stopped, resume=True, watch=lambda event: heard.append(len(event.rows)))
    assert heard == [3, 4]
    assert same_end(stopped, finished)


def test_tensors_keep_the_order_of_their_names(tmp_path: Path) -> None:
    """A sum over all parameters is the same to the last bit only in the same order."""
    tensors = {name: torch.zeros(1) for name in ("weight", "bias", "second.weight", "a")}
    write_tensors(tmp_path / "file", tensors, {"fact": "1"})
    found, facts = read_tensors(tmp_path / "file")
    assert list(found) == list(tensors)
    assert facts == {"fact": "1"}


def test_only_what_the_checkpoint_knows_has_to_be_whole(stopped: Path, finished: Path) -> None:
    with (stopped / "rounds.jsonl").open("ab") as file:
        file.write(b'{"round": 4, "models": \n\0\0\0\n{"rou')
    assert call("run", "--out", str(stopped), "--resume").code == 0
    assert same_end(stopped, finished)


def test_another_split_is_noticed(stopped: Path, tmp_path: Path) -> None:
    split = stopped / "split.safetensors"
    good = split.read_bytes()
    other = tmp_path / "other.split"
    assert call("split", "make", str(other), *sets(*TINY, "seed=5")).code == 0
    assert "has another split; leave it out" in refused(stopped, "--split", str(other), code=2)
    shutil.copy(other, split)
    assert "does not belong to" in refused(stopped)
    split.write_bytes(good[:-1])
    assert str(split) in refused(stopped, code=3)
    split.unlink()
    assert str(split) in refused(stopped, code=3)
