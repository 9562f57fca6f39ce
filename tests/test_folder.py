"""The folder of a run: what is in it, who may have it, and what may change when a run goes on (8, 63, 67)."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from semifed import Experiment, run
from semifed.data.scenario import Scenario
from semifed.engine.assemble import Assembly
from semifed.engine.workers import InProcess
from semifed.errors import RunError, SettingError
from semifed.results.files import digest, read_tensors
from semifed.results.folder import RunFolder, difference
from toys import TINY, call, contents, environment, refused, rows_in, same_end, sets, stop_after, summary_in, tiny

pytest_plugins = ("folders",)

CHECKPOINT, PREVIOUS = "checkpoint.safetensors", "checkpoint.previous.safetensors"


def test_everything_is_in_the_folder(finished: Path) -> None:
    names = "experiment.toml environment.json split.safetensors rounds.jsonl summary.json model.safetensors .lock"
    assert {path.name for path in finished.iterdir()} == {*names.split(), CHECKPOINT, PREVIOUS, "holdings.json"}
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
    assert same_end(stopped, finished)


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


def test_an_experiment_that_was_edited_in_the_folder_is_noticed(stopped: Path) -> None:
    file = stopped / "experiment.toml"
    file.write_text(file.read_text().replace("rounds = 4", "rounds = 5"))
    assert "the experiment has changed (train.rounds: 4 -> 5)" in refused(stopped, code=2)
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
    line = refused(stopped, *sets("client.lr=0.5", "train.rounds=6"), code=2)
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
        assert "data and split stay as they are" in refused(stopped, *sets(change), "--override", code=2)


def test_67_what_does_not_fit_the_checkpoint_is_refused_even_so(stopped: Path) -> None:
    line = refused(stopped, *sets("net=resnet9"), "--override", code=2)
    assert "the checkpoint does not fit the net or the method: net/features" in line


def test_67_a_refused_override_leaves_the_experiment_as_it_was(stopped: Path) -> None:
    assert "engine.device" in refused(stopped, *sets("engine.device=abacus"), "--override", code=2)


def test_67_workers_may_change_without_a_word(stopped: Path, finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def workers(assembly: Assembly) -> InProcess:
        asked.append(assembly.experiment.engine.workers)
        return InProcess(assembly.workshop, assembly.experiment.engine.chunk)

    monkeypatch.setattr("semifed.engine.workers.Workers", workers)
    assert call("run", "--out", str(stopped), "--resume", *sets("engine.workers=3")).code == 0
    assert asked == [3]
    assert same_end(stopped, finished)
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
        assert f"{stopped}: is in use by another run" in refused(stopped)
        holder.kill()
    assert call("run", "--out", str(stopped), "--resume").code == 0
    assert same_end(stopped, finished)


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
