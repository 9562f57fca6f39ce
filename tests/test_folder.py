"""The folder of a run: what is in it, who may have it, and that a run never goes on from what is not its own past."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from semifed import Experiment, run
from semifed.data.scenario import Scenario
from semifed.engine.assemble import Assembly
from semifed.engine.workers import InProcess
from semifed.errors import RunError, SettingError
from semifed.params import flatten
from semifed.results import checkpoint
from semifed.results.files import digest, read_tensors, write_tensors
from semifed.results.folder import RunFolder, difference
from toys import TINY, call, contents, environment, rows_in, sets, stop_after, summary_in, tiny

CHECKPOINT, PREVIOUS = "checkpoint.safetensors", "checkpoint.previous.safetensors"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four rounds that is done."""
    folder = tmp_path_factory.mktemp("runs") / "finished"
    assert call(*tiny(folder)).code == 0
    return folder


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run, stopped after three rounds."""
    folder = tmp_path_factory.mktemp("runs") / "half"
    with pytest.raises(KeyboardInterrupt):
        run(Experiment.read(None, TINY), folder, watch=stop_after(3))
    return folder


@pytest.fixture
def stopped(half: Path, tmp_path: Path) -> Path:
    """A copy of it, in another place, for one test to spoil."""
    return shutil.copytree(half, tmp_path / "stopped")


def _same_end(one: Path, two: Path) -> bool:
    return rows_in(one) == rows_in(two) and summary_in(one)["model"] == summary_in(two)["model"]


def _refused(folder: Path, *words: str, code: int = 4) -> str:
    """The line with which a run is refused to go on, and nothing in its folder has changed."""
    before = contents(folder)
    said = call("run", "--out", str(folder), "--resume", *words)
    assert said.code == code, said
    assert contents(folder) == before
    return said.line


def test_everything_is_in_the_folder(finished: Path) -> None:
    names = "experiment.toml environment.json split.safetensors rounds.jsonl summary.json model.safetensors .lock"
    assert {path.name for path in finished.iterdir()} == {*names.split(), CHECKPOINT, PREVIOUS}
    assert Experiment.read(finished / "experiment.toml") == Experiment.read(None, TINY)
    facts = json.loads((finished / "environment.json").read_bytes())
    assert facts["split"] == Scenario.load(finished / "split.safetensors").digest()
    assert {"semifed", "python", "torch", "platform", "device", "threads", "workers", "data", "command"} <= set(facts)
    (row, *_) = rows_in(finished)
    assert set(row["models"]["global"]) == {"accuracy", "loss"}
    assert row["terms"]["cross_entropy"] > 0
    assert row["bytes"]["down"] == row["bytes"]["up"] > 0
    summary, rows = summary_in(finished), rows_in(finished)
    assert (summary["status"], summary["rounds"]) == ("finished", 4)
    assert summary["models"]["global"]["last"] == {"round": 4, **rows[-1]["models"]["global"]}
    best = max(rows, key=lambda row: row["models"]["global"]["accuracy"])
    assert summary["models"]["global"]["best"] == {"round": best["round"], **best["models"]["global"]}
    model, _ = read_tensors(finished / "model.safetensors")
    assert digest(model) == summary["model"]


def test_going_on_with_a_finished_run_shows_it_and_changes_nothing(finished: Path) -> None:
    before = contents(finished)
    said = call("run", "--out", str(finished), "--resume", "--json")
    assert json.loads(said.out) == {**summary_in(finished), "folder": str(finished)}
    assert call(*tiny(finished, "--resume")).code == 0
    assert contents(finished) == before


def test_a_copied_folder_goes_on(stopped: Path, finished: Path) -> None:
    assert summary_in(stopped)["status"] == "stopped"
    assert call("run", "--out", str(stopped), "--resume").code == 0
    assert _same_end(stopped, finished)


def test_a_run_that_goes_on_has_no_summary_that_passes_for_its_result(stopped: Path) -> None:
    seen = []
    run(out=stopped, resume=True, watch=lambda _: seen.append(summary_in(stopped)["status"]))
    assert seen == ["running", "running"]
    assert summary_in(stopped)["status"] == "finished"


@pytest.mark.parametrize("damage", ["{", "[]", ""])
def test_a_damaged_summary_is_made_again(damage: str, stopped: Path) -> None:
    (stopped / "summary.json").write_text(damage)
    assert call("run", "--out", str(stopped), "--resume").code == 0
    assert summary_in(stopped)["status"] == "finished"


def test_a_deleted_model_is_made_again(finished: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(finished, tmp_path / "copy")
    (folder / "model.safetensors").unlink()
    assert call("run", "--out", str(folder), "--resume").code == 0
    model, _ = read_tensors(folder / "model.safetensors")
    assert digest(model) == summary_in(finished)["model"]


# 65 · corrupt, truncated, foreign, missing


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
    line = _refused(stopped)
    assert str(stopped / CHECKPOINT) in line
    assert "the checkpoint before it, of round 2, is good: --resume --previous" in line
    bad = (stopped / CHECKPOINT).read_bytes() if (stopped / CHECKPOINT).exists() else None
    assert call("run", "--out", str(stopped), "--resume", "--previous").code == 0
    assert _same_end(stopped, finished)
    assert call("run", "--out", str(stopped), "--resume").code == 0
    aside = stopped / "checkpoint.aside.safetensors"
    assert (aside.read_bytes() if aside.exists() else None) == bad, "it may be someone's only copy"


@pytest.mark.parametrize("spoil", SPOIL)
def test_65_two_bad_checkpoints_and_the_run_does_not_start_from_zero(
    spoil: Callable[[Path], None], stopped: Path
) -> None:
    spoil(stopped / CHECKPOINT)
    _text(stopped / PREVIOUS)
    line = _refused(stopped)
    assert str(stopped / CHECKPOINT) in line
    assert "--previous" not in line
    assert "start the run anew in another folder" in line
    assert str(stopped / PREVIOUS) in _refused(stopped, "--previous")


@pytest.mark.parametrize("done", [0, 1, 2])
def test_65_going_back_may_be_disturbed(done: int, stopped: Path, finished: Path) -> None:
    """By a kill after none, one or both of the renamings that make the previous checkpoint the newest."""
    _flip(stopped / CHECKPOINT)
    renamings = [(CHECKPOINT, "checkpoint.aside.safetensors"), (PREVIOUS, CHECKPOINT)]
    for before, after in renamings[:done]:
        (stopped / before).rename(stopped / after)
    words = ["run", "--out", str(stopped), "--resume"]
    if done < 2:
        assert "is good: --resume --previous" in _refused(stopped)
        words.append("--previous")
    assert call(*words).code == 0
    assert _same_end(stopped, finished)


def test_65_no_checkpoint_left(stopped: Path) -> None:
    for path in stopped.glob("checkpoint*"):
        path.unlink()
    assert f"{stopped / CHECKPOINT}: there is no such file" in _refused(stopped)


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


@pytest.mark.parametrize(("format", "version"), [("0", "0.0.9"), ("2", "3.1.4")])
def test_66_another_format_is_refused_with_its_version(format: str, version: str, stopped: Path) -> None:
    tensors, facts = read_tensors(stopped / CHECKPOINT)
    write_tensors(stopped / CHECKPOINT, tensors, {**facts, "format": format, "semifed": version})
    line = _refused(stopped)
    assert f"is of format {format}, written by semifed {version}" in line
    assert "with format 1: go on with that version" in line


def test_rounds_that_were_edited_are_noticed(stopped: Path) -> None:
    file = stopped / "rounds.jsonl"
    text = file.read_text()
    file.write_text(text.replace('"round": 3', '"round": 3 '))
    assert "does not belong to the rounds.jsonl and split.safetensors beside it" in _refused(stopped)
    file.write_text("".join(text.splitlines(keepends=True)[:1]))
    assert f"{file}: has 1 rounds, but {CHECKPOINT} is of round 3" in _refused(stopped)
    file.write_bytes(b"\0" * 100)
    assert f"{file}: has 0 rounds" in _refused(stopped)
    file.unlink()
    assert f"{file}: cannot be read" in _refused(stopped)


def test_killed_between_the_two_renamings_of_a_checkpoint(stopped: Path, finished: Path) -> None:
    (stopped / CHECKPOINT).rename(stopped / "checkpoint.next.safetensors")
    heard: list[int] = []
    run(out=stopped, resume=True, watch=lambda event: heard.append(len(event.rows)))
    assert heard == [3, 4]
    assert _same_end(stopped, finished)


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
    assert _same_end(stopped, finished)


def test_another_split_is_noticed(stopped: Path, tmp_path: Path) -> None:
    split = stopped / "split.safetensors"
    good = split.read_bytes()
    other = tmp_path / "other.split"
    assert call("split", "make", str(other), *sets(*TINY, "seed=5")).code == 0
    assert "has another split; leave it out" in _refused(stopped, "--split", str(other), code=2)
    shutil.copy(other, split)
    assert "does not belong to" in _refused(stopped)
    split.write_bytes(good[:-1])
    assert str(split) in _refused(stopped, code=3)
    split.unlink()
    assert str(split) in _refused(stopped, code=3)


def test_an_experiment_that_was_edited_in_the_folder_is_noticed(stopped: Path) -> None:
    file = stopped / "experiment.toml"
    file.write_text(file.read_text().replace("rounds = 4", "rounds = 5"))
    assert "the experiment has changed (train.rounds: 4 -> 5)" in _refused(stopped, code=2)
    assert call("run", "--out", str(stopped), "--resume", "--override").code == 0
    assert len(rows_in(stopped)) == 5


def test_a_folder_without_an_experiment_is_not_begun_anew(stopped: Path) -> None:
    (stopped / "experiment.toml").unlink()
    before = contents(stopped)
    for words in (["run", "--out", str(stopped), "--resume"], tiny(stopped, "--resume"), tiny(stopped)):
        said = call(*words)
        assert said.code == 4
        assert f"{stopped}: holds other things and is not the folder of a run" in said.line
    assert contents(stopped) == before


# 67 · a changed experiment


def test_67_a_changed_experiment_is_refused_with_the_difference(stopped: Path) -> None:
    line = _refused(stopped, *sets("client.lr=0.5", "train.rounds=6"), code=2)
    assert (
        "the experiment has changed (train.rounds: 4 -> 6; client.lr: 0.01 -> 0.5); undo it or say --override" in line
    )


def test_67_override_goes_on_and_keeps_what_was_changed(stopped: Path) -> None:
    words = ["run", "--out", str(stopped), "--resume", *sets("client.lr=0.5", "train.rounds=6"), "--override"]
    assert call(*words).code == 0
    assert (stopped / "overrides.txt").read_text() == "after round 3: train.rounds: 4 -> 6; client.lr: 0.01 -> 0.5\n"
    assert Experiment.read(stopped / "experiment.toml").client.lr == 0.5
    assert len(rows_in(stopped)) == summary_in(stopped)["rounds"] == 6
    assert call("run", "--out", str(stopped), "--resume").code == 0
    assert summary_in(stopped)["status"] == "finished"


def test_67_an_override_has_to_be_said_once(stopped: Path) -> None:
    words = ["--out", str(stopped), "--resume"]
    with pytest.raises(KeyboardInterrupt):
        run(Experiment.read(None, [*TINY, "train.rounds=5"]), stopped, resume=True, override=True, watch=stop_after(3))
    assert call("run", *words).code == 0
    assert len(rows_in(stopped)) == 5


def test_67_fewer_rounds_than_there_were_are_done(stopped: Path) -> None:
    assert call("run", "--out", str(stopped), "--resume", *sets("train.rounds=2"), "--override").code == 0
    assert (summary_in(stopped)["status"], len(rows_in(stopped))) == ("finished", 3)


def test_67_data_and_split_stay(stopped: Path) -> None:
    for change in ("scenario.clients=7", "data=mnist5k"):
        assert "data and split stay as they are" in _refused(stopped, *sets(change), "--override", code=2)


def test_67_what_does_not_fit_the_checkpoint_is_refused_even_so(stopped: Path) -> None:
    line = _refused(stopped, *sets("net=resnet9"), "--override", code=2)
    assert "the checkpoint does not fit the net or the method: net/features" in line


def test_67_a_refused_override_leaves_the_experiment_as_it_was(stopped: Path) -> None:
    assert "engine.device" in _refused(stopped, *sets("engine.device=abacus"), "--override", code=2)


def test_67_workers_may_change_without_a_word(stopped: Path, finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def workers(assembly: Assembly) -> InProcess:
        asked.append(assembly.experiment.engine.workers)
        return InProcess(assembly.workshop, assembly.experiment.engine.chunk)

    monkeypatch.setattr("semifed.engine.workers.Workers", workers)
    assert call("run", "--out", str(stopped), "--resume", *sets("engine.workers=3")).code == 0
    assert asked == [3]
    assert _same_end(stopped, finished)
    assert not (stopped / "overrides.txt").exists()


def test_difference_sees_tuples_and_lists_as_one() -> None:
    assert difference({"a": [1, 2], "t": {"x": 1, "y": None}}, {"a": (1, 2), "t": {"x": 1}}) == []
    assert difference({"t": {"x": 1}}, {"t": {"x": 2}, "new": 3}) == ["t.x: 1 -> 2", "new: None -> 3"]


# who may have the folder

HOLD = """
import sys
from pathlib import Path
from semifed.results.folder import RunFolder
folder = RunFolder.reopen(Path(sys.argv[1]))
print("mine", flush=True)
sys.stdin.read()
"""


def test_a_folder_in_use_is_refused_and_one_of_a_dead_process_is_not(stopped: Path, finished: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(stopped)]
    with subprocess.Popen(command, stdin=-1, stdout=-1, env=environment()) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"mine\n"
        assert f"{stopped}: is in use by another run" in _refused(stopped)
        holder.kill()
    assert call("run", "--out", str(stopped), "--resume").code == 0
    assert _same_end(stopped, finished)


def test_two_runs_of_one_process_do_not_share_a_folder(tmp_path: Path) -> None:
    refused = []

    def second(_: object) -> None:
        with pytest.raises(RunError, match="is in use by another run") as error:
            run(out=tmp_path / "run", resume=True)
        refused.append(error)

    record = run(Experiment.read(None, TINY), tmp_path / "run", watch=second)
    assert len(refused) == 5
    assert record.summary["status"] == "finished"


@pytest.mark.parametrize("moment", ["while it prepares", "before it has the lock"])
def test_another_run_that_was_faster_keeps_its_folder(
    moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look whether a folder is free and the lock on it, another run begins and ends there."""
    folder = tmp_path / "run"
    place, name = (sys.modules["semifed.run"], "prepare") if moment == "while it prepares" else (RunFolder, "_open")
    good = getattr(place, name)

    def slowly(*arguments: object) -> object:
        monkeypatch.undo()
        run(Experiment.read(None, [*TINY, "seed=3"]), folder)
        return good(*arguments)

    monkeypatch.setattr(place, name, slowly)
    with pytest.raises(RunError, match="is there already"):
        run(Experiment.read(None, TINY), folder)
    assert Experiment.read(folder / "experiment.toml").seed == 3
    assert call("run", "--out", str(folder), "--resume").code == 0


def test_there_must_be_something_to_go_on_with(tmp_path: Path) -> None:
    assert call(*tiny(tmp_path / "nothing", "--resume")).code == 4
    assert not any(tmp_path.iterdir())
    (tmp_path / "empty").mkdir()
    said = call("run", "--out", str(tmp_path / "empty"), "--resume")
    assert said.code == 2
    assert "there is nothing to go on with yet; give an experiment" in said.line
    assert call(*tiny(tmp_path / "empty", "--resume")).code == 0


def test_remnants_of_a_kill_are_swept(stopped: Path) -> None:
    for name in ("checkpoint.next.safetensors.partial", "summary.json.partial", ".split.safetensors.1f2e.part"):
        (stopped / name).write_bytes(b"half a f")
    (stopped / "notes.part").write_text("a person's own")
    assert call("run", "--out", str(stopped), "--resume").code == 0
    assert [path.name for path in stopped.glob("*.part*")] == ["notes.part"]


def test_previous_and_override_go_with_resume(tmp_path: Path) -> None:
    for option in ("--previous", "--override"):
        said = call(*tiny(tmp_path / "run", option))
        assert said.code == 2
        assert f"{option}: goes with --resume only" in said.line
    with pytest.raises(SettingError, match="--resume: say which run with --out"):
        run(Experiment.read(None, TINY), resume=True)
    assert not (tmp_path / "run").exists()
