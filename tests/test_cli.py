"""The command line: what goes to which stream, lists, splits, help, and names of folders."""

import io
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from rich.console import Console

from semifed import METHODS, Experiment, __version__, cli, run
from semifed.commands import run as run_command
from semifed.data.scenario import SCENARIOS, Scenario
from semifed.data.sources import SOURCES
from semifed.nets.zoo import NETS
from semifed.terminal import Watcher
from toys import TINY, call, plain, rows_in, sets, start, summary_in, tiny


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


# streams


def test_without_arguments_it_trains_on_the_embedded_data(here: Path) -> None:
    said = call("run", *sets("train.rounds=1", "client.epochs=1"))
    assert said.code == 0
    assert "everything is in runs/fedavg-mnist5k-iid-001" in said.out
    assert summary_in(here / "runs/fedavg-mnist5k-iid-001")["status"] == "finished"


def test_progress_goes_to_stderr_and_the_result_to_stdout(here: Path) -> None:
    said = call(*tiny("run"))
    assert said.code == 0
    assert [line.split()[:2] for line in said.err.splitlines()] == [["round", f"{number}/4"] for number in range(1, 5)]
    assert "global" in said.out
    assert "everything is in run\n" in said.out


def test_json_is_the_summary_and_nothing_else(here: Path) -> None:
    said = call(*tiny("run", "--json"))
    assert json.loads(said.out) == {**summary_in(here / "run"), "folder": "run"}
    assert len(said.err.splitlines()) == 4


def test_quiet_leaves_the_result_alone(here: Path) -> None:
    said = call(*tiny("run", "scenario.clients=450", "--quiet", "--json"))
    assert said.err == ""
    assert json.loads(said.out)["rounds"] == 4


def test_rounds_without_a_test_have_a_line_too(here: Path) -> None:
    said = call(*tiny("run", "train.evaluate_every=3"))
    assert ["global" in line for line in said.err.splitlines()] == [False, False, True, True]


def test_the_end_of_a_run_is_foretold_from_the_rounds_of_this_process(here: Path) -> None:
    call(*tiny("run", "train.rounds=2"))
    said = call("run", "--out", "run", "--resume", "--override", *sets("train.rounds=3"))
    (line,) = said.err.splitlines()
    assert line.startswith("round 3/3")
    assert line.endswith("0 s left")


def test_a_terminal_has_a_bar_and_no_lines() -> None:
    screen = io.StringIO()
    watcher = Watcher(Console(file=screen, force_terminal=True, width=100))
    run(Experiment.read(None, [*TINY, "train.evaluate_every=3"]), watch=watcher)
    watcher.close()
    shown = screen.getvalue()
    assert "━" in shown
    assert "4/4" in shown
    assert "global" in shown
    assert "s left" not in shown


def test_a_quiet_terminal_shows_nothing() -> None:
    screen = io.StringIO()
    watcher = Watcher(Console(file=screen, force_terminal=True), quiet=True)
    run(Experiment.read(None, [*TINY, "scenario.clients=450"]), watch=watcher)
    watcher.close()
    assert screen.getvalue() == ""


@pytest.mark.slow
@pytest.mark.parametrize("option", [(), ("--json",)])
def test_a_reader_who_has_seen_enough_hears_no_complaint(option: tuple[str, ...]) -> None:
    with start("list", "methods", *option) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""


# folders that nobody named


def test_new_folders_never_collide(here: Path) -> None:
    experiment = Experiment()
    claimed: list[Path] = []

    def claim() -> None:
        claimed.extend(run_command._claim_folder(experiment) for _ in range(20))

    threads = [threading.Thread(target=claim) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(claimed)) == 80
    assert sorted(path.name for path in here.glob("runs/*"))[0] == "fedavg-mnist5k-iid-001"


def test_a_failed_start_leaves_no_folder(here: Path) -> None:
    assert call("run", *sets("engine.device=abacus")).code == 2
    assert not list(here.glob("runs/*"))


def test_a_folder_that_cannot_be_made_is_told(here: Path) -> None:
    (here / "runs").write_text("")
    said = call("run", *sets(*TINY))
    assert said.code == 4
    assert "runs/fedavg-synthetic-iid-001: cannot be made: Not a directory; give --out" in said.line


def test_own_methods_lie_in_the_current_folder(here: Path) -> None:
    (here / "at_home.py").write_text("from semifed.methods.fedavg import FedAvg\nclass Mine(FedAvg): pass\n")
    said = call("run", *sets(*TINY, "method=at_home:Mine", "train.rounds=1"))
    assert said.code == 0
    assert "runs/at_home.Mine-synthetic-iid-001" in said.out


# lists


@pytest.mark.parametrize(
    ("what", "names"), [("methods", METHODS), ("data", SOURCES), ("nets", NETS), ("scenarios", SCENARIOS)]
)
def test_lists_name_everything(what: str, names: dict[str, object]) -> None:
    content = json.loads(call("list", what, "--json").out)
    assert [name for name in content if ":" not in name] == list(names)
    text = call("list", what).out
    for name, entry in content.items():
        assert f"{name}  {entry['description']}\n" in text
        for option in entry.get("options", []):
            assert f"    {option['name']} = " in text


def test_lists_have_options_with_defaults_and_help() -> None:
    options = {one["name"]: one for one in json.loads(call("list", "methods", "--json").out)["fedprox"]["options"]}
    assert options["mu"] == {"name": "mu", "default": 0.01, "help": "weight of the pull"}
    assert "    augment = false    read weakly" in call("list", "methods").out
    partitions = json.loads(call("list", "scenarios", "--json").out)
    assert [one["name"] for one in partitions["dirichlet"]["options"]][-1] == "alpha"


def test_a_list_of_nothing_we_have() -> None:
    said = call("list", "colours")
    assert said.code == 2
    assert "'colours' is not one of 'methods', 'data', 'nets', 'scenarios'" in said.line


# splits


def test_a_split_is_made_shown_verified_and_used(here: Path) -> None:
    said = call("split", "make", "my split", *sets(*TINY))
    digest = Scenario.load(here / "my split").digest()
    assert (said.code, said.out) == (0, f"my split: {digest}\n")
    assert call("split", "verify", "my split", *sets(*TINY)).out == f"my split: good, {digest}\n"
    shown = call("split", "show", "--file", "my split", *sets(*TINY))
    assert f"digest {digest}" in shown.out
    content = json.loads(call("split", "show", "--file", "my split", *sets(*TINY), "--json").out)
    assert content["digest"] == digest
    held = [sum(held["labelled"]) + sum(held["unlabelled"]) for held in content["holders"].values()]
    assert (len(held), sum(held)) == (7, 400)


def test_a_run_keeps_to_a_given_split(here: Path) -> None:
    assert call("split", "make", "other", *sets(*TINY, "seed=5")).code == 0
    assert call(*tiny("plain")).code == 0
    assert call(*tiny("given", "--split", "other")).code == 0
    assert (here / "given/split.safetensors").exists()
    digest = Scenario.load(here / "other").digest()
    assert Scenario.load(here / "given/split.safetensors").digest() == digest
    assert json.loads((here / "given/environment.json").read_bytes())["split"] == digest
    assert rows_in(here / "given") != rows_in(here / "plain")
    (here / "other").unlink()
    assert call("run", "--out", "given", "--resume").code == 0, "the run has its own copy"


def test_a_split_of_other_data_is_refused(here: Path) -> None:
    assert call("split", "make", "s", *sets(*TINY, "data=mnist5k")).code == 0
    said = call(*tiny("run", "--split", "s"))
    assert said.code == 3
    assert "the split is of 5000 samples, but the data have 500" in said.line
    assert not (here / "run").exists()
    assert call("split", "verify", "s", *sets(*TINY)).code == 3
    assert call("split", "show", "--file", "s", *sets(*TINY)).code == 3


@pytest.mark.parametrize("place", [20, 0.3, 0.6, -1])
def test_a_tampered_split_is_refused(place: float, here: Path) -> None:
    assert call("split", "make", "s", *sets(*TINY)).code == 0
    data = bytearray((here / "s").read_bytes())
    data[int(place * len(data)) if 0 < place < 1 else int(place)] ^= 1
    (here / "s").write_bytes(data)
    for words in (["split", "verify", "s", *sets(*TINY)], tiny("run", "--split", "s")):
        said = call(*words)
        assert said.code == 3
        assert said.line.startswith("semifed: error: s: ")
    assert not (here / "run").exists()


def test_splits_are_not_overwritten_and_their_folder_must_be_there(here: Path) -> None:
    (here / "s").write_text("mine")
    said = call("split", "make", "s", *sets(*TINY))
    assert said.code == 4
    assert "s: is there already; give another name" in said.line
    assert (here / "s").read_text() == "mine"
    said = call("split", "make", "no/where", *sets(*TINY))
    assert said.code == 3
    assert "no/where: the split cannot be written" in said.line
    said = call(*tiny("run", "--split", "nowhere"))
    assert said.code == 3
    assert "nowhere: no such split file; make one with `semifed split make`" in said.line


def test_an_experiment_of_a_file_and_assignments_on_top(here: Path) -> None:
    (here / "exp.toml").write_text(Experiment.read(None, TINY).toml())
    assert call("run", "exp.toml", *sets("train.rounds=1", "method=fedprox"), "--out", "run").code == 0
    made = Experiment.read(here / "run/experiment.toml")
    assert made == Experiment.read(None, [*TINY, "train.rounds=1", "method=fedprox"])
    again = run(made)
    assert plain(again.rows) == rows_in(here / "run"), "experiment.toml runs it again"


# help


def _commands(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    yield name, command
    for inner, one in getattr(command, "commands", {}).items():
        yield from _commands(one, f"{name} {inner}")


COMMANDS = dict(_commands(cli.cli, "semifed"))


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_an_example(name: str) -> None:
    for option in ("--help", "-h"):
        said = call(*name.split()[1:], option)
        assert (said.code, said.err) == (0, "")
        example = said.out.partition("\n")[2]  # after the usage
        assert f"  {name} " in example
        for parameter in COMMANDS[name].params:
            assert isinstance(parameter, click.Argument) or parameter.opts[0] in said.out


def test_every_option_says_what_it_does() -> None:
    options = [one for command in COMMANDS.values() for one in command.params if isinstance(one, click.Option)]
    assert options
    assert all(option.help for option in options)


def test_a_command_without_its_arguments_shows_its_help() -> None:
    for words in ([], ["split"]):
        said = call(*words)
        assert said.code == 2
        assert "Commands:" in said.err


def test_the_version() -> None:
    assert call("--version").out == f"semifed, version {__version__}\n"
