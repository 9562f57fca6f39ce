"""Bad input through the command line: one line with the place and the remedy, an exit code, and nothing written.

The numbers are those of the list of fault cases: 1-12, settings and command line. Data and partitions are in
test_faults_data, Ctrl-C (10) is in test_resume.
"""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from semifed import Experiment, run
from semifed.errors import RunError
from toys import TINY, Said, call, contents, end, environment, sets, start, tiny

SETTINGS: dict[str, tuple[list[str], str]] = {
    "1 unknown key": (["methd=fedavg"], "methd: no such setting; did you mean method?"),
    "1 unknown key in a table": (["train.round=3"], "train.round: no such setting; did you mean rounds?"),
    "1 unknown option of a method": (["method=fedprox", "method.mue=3"], "method.mue: no such setting; did you mean"),
    "1 unknown method": (["method=fedavgg"], "there is no method 'fedavgg'; did you mean fedavg?"),
    "1 unknown data": (["data=minst"], "did you mean mnist?"),
    "1 unknown net": (["net=mpl"], "did you mean mlp?"),
    "1 unknown partition": (["scenario.partition=iidd"], "did you mean iid?"),
    "1 own method that is not there": (["method=toys:Nobody"], "toys has no class 'Nobody'"),
    "1 own module that is not there": (["method=nowhere:Method"], "cannot import 'nowhere'"),
    "1 no value": (["train.rounds"], "--set train.rounds: expected key=value"),
    "2 wrong type": (["train.rounds=ten"], "train.rounds: expected a whole number, not 'ten'"),
    "2 a flag for a number": (["train.rounds=true"], "train.rounds: expected a whole number, not True"),
    "2 a number for a flag": (["client.drop_last=1"], "client.drop_last: expected true or false, not 1"),
    "2 a value for a table": (["views=3"], "views: expected a table, not 3"),
    "3 alpha 0": (["scenario.partition=dirichlet", "scenario.alpha=0"], "scenario.alpha: must be above 0"),
    "3 no rounds": (["train.rounds=0"], "train.rounds: must be at least 1, not 0"),
    "3 nobody takes part": (["train.clients_per_round=0"], "train.clients_per_round: must be at least 1"),
    "3 gamma above 1": (["scenario.gamma=1.5"], "scenario.gamma: must be above 0 and at most 1"),
    "3 momentum 1": (["client.momentum=1"], "client.momentum: must be at least 0 and below 1"),
    "3 not a number": (["client.lr=nan"], "client.lr: must be above 0, not nan"),
    "5 method and scenario": (
        ["method=toys:AtServer"],
        'AtServer does not work with labels at the client; it needs scenario.labels = "server"',
    ),
    "5 partition and labels": (
        ["scenario.labels=server", "scenario.partition=noniid-2"],
        "'noniid-2' does not fit labels = \"server\"; use one of iid, ",
    ),
    "6 more a round than there are": (
        ["train.clients_per_round=7"],
        "train.clients_per_round: 7 clients a round are more than the 6",
    ),
    "12 no such device": (["engine.device=abacus"], "engine.device: 'abacus' is not to be had here"),
}


@pytest.mark.parametrize("case", SETTINGS)
def test_bad_settings_are_refused_before_data_are_loaded(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assignments, message = SETTINGS[case]
    monkeypatch.setattr("semifed.data.sources.load", lambda *_: pytest.fail("the data were loaded"))
    said = call(*tiny(tmp_path / "run", *assignments)) if "=" in assignments[0] else call("run", *sets(*assignments))
    assert message in said.line
    assert said.line.startswith("semifed: error: ")
    assert (said.code, said.out) == (2, "")
    assert not any(tmp_path.iterdir())


def test_debug_shows_where_wherever_it_stands(tmp_path: Path) -> None:
    for words in (
        ["--debug", *tiny(tmp_path / "run", "train.rounds=0")],
        [*tiny(tmp_path / "run", "train.rounds=0"), "--debug"],
    ):
        said = call(*words)
        assert said.code == 2
        assert "Traceback" in said.err
        assert said.err.endswith("semifed: error: train.rounds: must be at least 1, not 0\n")


def test_a_real_process_behaves_the_same(tmp_path: Path) -> None:
    said = end(start("run", *sets("methd=fedavg"), "--out", str(tmp_path / "run")))
    assert said == Said(2, "", "semifed: error: methd: no such setting; did you mean method?\n")
    assert not any(tmp_path.iterdir())


def test_an_unknown_option_is_one_line_too() -> None:
    said = call("run", "--outt", "x")
    assert said.code == 2
    assert "No such option" in said.line
    assert said.line.endswith("See semifed run --help")


def test_a_fault_of_ours_is_one_line_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("semifed.engine.assemble.load_data", lambda *_: 1 // 0)
    said = call(*tiny(tmp_path / "run"))
    assert said.code == 70
    assert said.line.startswith("semifed: internal error: ZeroDivisionError: ")
    assert said.line.endswith("; --debug shows where")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("value", ["true", "false"])
def test_4_false_is_false(value: str, tmp_path: Path) -> None:
    assert call(*tiny(tmp_path / "run", "method=fedavg", f"method.augment={value}", "train.rounds=1")).code == 0
    assert f"augment = {value}\n" in (tmp_path / "run/experiment.toml").read_text()


def test_7_the_core_works_without_extras(tmp_path: Path) -> None:
    blocked = "import sys; sys.modules |= dict.fromkeys(['flwr', 'kornia', 'torchvision', 'mlxtend', 'psutil']); "
    script = f"{blocked} from semifed.cli import main; main()"
    words = [sys.executable, "-c", script, *tiny(tmp_path / "run", "train.rounds=1")]
    assert subprocess.run(words, check=False, capture_output=True, env=environment()).returncode == 0


def test_8_a_folder_that_is_there_is_not_touched(tmp_path: Path) -> None:
    for name, message in (("run", "is there already; go on with --resume"), ("other", "holds other things")):
        folder = tmp_path / name
        if name == "run":
            assert call(*tiny(folder)).code == 0
        else:
            folder.mkdir()
            (folder / "thesis.txt.part").write_text("mine")
        before = contents(folder)
        said = call(*tiny(folder, "seed=2"))
        assert said.code == 4
        assert message in said.line
        assert contents(folder) == before


def _tiny_disk(path: Path, size: str) -> bool:
    path.mkdir()
    command = ["/bin/mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)]
    return Path(command[0]).exists() and subprocess.run(command, check=False, capture_output=True).returncode == 0


def test_9_no_place_to_write(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    places = {
        "/proc/semifed-run": "cannot be written",
        "/sys/semifed-run": "cannot be written",
        f"{tmp_path}/file": "is a file",
        f"{tmp_path}/file/below": "cannot be",
        f"{tmp_path}/{'x' * 300}": "File name too long",
    }
    for place, message in places.items():
        said = call(*tiny(place))
        assert said.code == 4, place
        assert message in said.line
        assert place in said.line
    with pytest.raises(RunError, match="null"):
        run(Experiment.read(None, TINY), f"{tmp_path}/nul\0")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_9_missing_parents_are_made(tmp_path: Path) -> None:
    assert call(*tiny(tmp_path / "a/b/run", "train.rounds=1")).code == 0
    assert (tmp_path / "a/b/run/summary.json").exists()


@pytest.mark.parametrize("size", ["0", "40k", "120k"])
def test_9_a_full_disk_shows_at_the_start(size: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With no space at all, with too little for a checkpoint, and with too little for two."""
    monkeypatch.setattr(sys.modules["semifed.run"], "run_rounds", lambda *_: pytest.fail("training has begun"))
    disk = tmp_path / "disk"
    mounted = _tiny_disk(disk, "4k" if size == "0" else size)
    if not mounted and size != "0":
        pytest.skip("only root can make a small disk")
    try:
        if size == "0" and mounted:
            (disk / "full").write_bytes(b"0" * 4096)
        elif size == "0":

            def full(*_: Any) -> None:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

            monkeypatch.setattr("os.fsync", full)
        said = call(*tiny(disk / "run"))
        assert said.code == 4
        assert "No space left" in said.line
        assert not (disk / "run/summary.json").exists()
    finally:
        if mounted:
            subprocess.run(["/bin/umount", str(disk)], check=True)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'\xff\xfedata = "synthetic"', "is not UTF-8 text"),
        (b"seed = 1\nseed = 2\n", "is not valid TOML: Cannot overwrite a value"),
        (b"seed = \n", "is not valid TOML"),
        (None, "there is no such file"),
    ],
)
def test_11_unreadable_experiments(content: bytes | None, message: str, tmp_path: Path) -> None:
    file = tmp_path / "ex periment é.toml"
    if content is not None:
        file.write_bytes(content)
    said = call("run", str(file), "--out", str(tmp_path / "run"))
    assert said.code == 2
    assert str(file) in said.line
    assert message in said.line
    assert not (tmp_path / "run").exists()


def test_11_a_mark_windows_lines_and_odd_paths(tmp_path: Path) -> None:
    file = tmp_path / "mein Versuch ü 数.toml"
    text = Experiment.read(None, [*TINY, "train.rounds=1"]).toml()
    file.write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    folder = tmp_path / "Läufe [1] 'quoted' 数/run $1"
    assert call("run", str(file), "--out", str(folder)).code == 0
    assert (folder / "experiment.toml").read_text(encoding="utf-8") == text
    assert json.loads(call("run", "--out", str(folder), "--resume", "--json").out)["folder"] == str(folder)


def test_11_a_name_that_is_not_utf8_does_not_end_a_run(tmp_path: Path) -> None:
    said = call(*tiny(f"{tmp_path}/caf\udce9", "train.rounds=1"))
    assert said.code == 0
    assert "everything is in" in said.out
    assert "\\udce9" in said.out


def test_12_devices(tmp_path: Path) -> None:
    if not torch.cuda.is_available():
        said = call(*tiny(tmp_path / "cuda", "engine.device=cuda"))
        assert said.code == 2
        assert "engine.device: 'cuda' is not to be had here" in said.line
        assert "use cpu or auto" in said.line
        assert not (tmp_path / "cuda").exists()
    assert call(*tiny(tmp_path / "auto", "engine.device=auto", "train.rounds=1")).code == 0
    device = json.loads((tmp_path / "auto/environment.json").read_bytes())["device"]
    assert device in ("cpu", "cuda", "mps")
