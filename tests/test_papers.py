"""The papers' tables: what is published, how each cell is run, the ledger, and `semifed reproduce`."""

import dataclasses
import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from semifed import Experiment, collect, run
from semifed.errors import RunError, SettingError
from semifed.papers import ledger, presets
from semifed.papers.ledger import Book, Entry, settings_of
from semifed.papers.numbers import published, slug
from semifed.papers.presets import chosen, merged
from semifed.papers.reproduce import fill, missing, of_cells, records, tally, text_table
from semifed.results.tables import latex, markdown, read_csv
from toys import TINY, call

pytest_plugins = ("folders",)

SMALL = """
# A table of two cells that ends in a moment.
title = "A small table"
paper = "FedSiam"
table = "toy"
round = "kept"

[experiment]
data = "synthetic"
net = "mlp"
scenario = { clients = 6, gamma = 0.5 }
train = { rounds = 2, clients_per_round = 3 }
client = { epochs = 1, batch = 20 }

[[when]]
method = ["One", "Same as one"]
experiment.method = "fedavg+"

[[when]]
method = "Two"
experiment.method = { name = "fedsiam-d", mu = 0.4 }
model = "target"
note = "our own reason"

[[cell]]
scenario = "labels-at-client"
dataset = "MNIST"
setting = "IID"
gamma = "0.1"
method = ["One", "Two", "Same as one"]
accuracy = 50.0

[scale.reduced]
about = "one round"
experiment.train.rounds = 1
"""


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A preset of the test's own, and the folder it is called from."""
    folder = tmp_path / "presets" / "toy"
    folder.mkdir(parents=True)
    (folder / "table.toml").write_text(SMALL)
    monkeypatch.setattr(presets, "home", lambda: tmp_path / "presets")
    monkeypatch.chdir(tmp_path)
    return "toy/table"


def test_every_published_figure_is_there() -> None:
    rows = published()
    assert len(rows) == 463
    assert Counter((row.paper, row.table) for row in rows) == {
        ("FedSiam", "5"): 240,
        ("FedSiam", "6"): 48,
        ("FedSiam", "7"): 24,
        ("FedSiam", "8"): 12,
        ("FedCon", "III"): 42,
        ("FedCon", "IV"): 42,
        ("FedMatch", "1"): 35,
        ("FedMatch", "2"): 16,
        ("FedMix", "fig4/6"): 4,
    }
    first = rows[0]
    assert (first.key, first.accuracy, first.runs, first.place) == ("mnist/iid/0.1/fedavg", 95.13, 3, "client")


def test_every_published_figure_is_a_cell_of_one_preset() -> None:
    cells = Counter(cell.published for name in presets.names() for cell in presets.read(name).cells)
    assert [row for row in published() if cells[row] != 1] == []


@pytest.mark.parametrize("name", presets.names())
def test_a_preset_can_be_run(name: str) -> None:
    text = (presets.home() / f"{name}.toml").read_text("utf-8")
    assert text.startswith("# "), "the head says which table of which paper it is"
    preset = presets.read(name)
    assert preset.round in presets.ROUNDS
    assert preset.cells
    keys = [cell.key for cell in preset.cells]
    assert len(set(keys)) == len(keys)
    for cell in preset.cells:
        assert Experiment.of(cell.experiment.tables()) == cell.experiment
        assert cell.experiment.scenario.labels == cell.published.place
        if cell.published.gamma:
            assert cell.experiment.scenario.gamma == float(cell.published.gamma)
    if "[scale.reduced]" in text:
        reduced = presets.read(name, "reduced")
        assert len(reduced.cells) == len(preset.cells)
        assert reduced.about != preset.about


def test_a_preset_is_said_as_people_say_it() -> None:
    preset = presets.read("fedsiam/table5")
    wanted = {"dataset": ["cifar10"], "setting": ["non-iid-i", "IID"], "gamma": ["0.10"], "method": ["FedSiam-D"]}
    keys = [cell.key for cell in chosen(preset, wanted)]
    assert keys == ["cifar-10/iid/0.1/fedsiam-d", "cifar-10/non-iid-i/0.1/fedsiam-d"]
    with pytest.raises(SettingError, match="--data: fedsiam/table5 has no 'mnst'; did you mean mnist"):
        chosen(preset, {"dataset": ["mnst"]})
    with pytest.raises(SettingError, match="--labels: fedsiam/table5 has no 'server'"):
        chosen(preset, {"scenario": ["server"]})
    with pytest.raises(SettingError, match="no cell has all that is asked for"):
        chosen(preset, {"setting": ["non-iid-iii"], "gamma": ["0.15"]})
    with pytest.raises(SettingError, match="no preset 'fedsiam/table55'; did you mean fedsiam/table5"):
        presets.read("fedsiam/table55")
    with pytest.raises(SettingError, match="--scale"):
        presets.read("fedsiam/table5", "huge")


def test_tables_are_merged_as_in_an_experiment_file() -> None:
    assert merged({"method": "a", "x": {"y": 1}}, {"method": {"z": 2}, "x": {"w": 3}}) == {
        "method": {"name": "a", "z": 2},
        "x": {"y": 1, "w": 3},
    }
    assert merged({"method": {"name": "a", "z": 2}}, {"method": "b"}) == {"method": "b"}
    assert slug("FedMatch (sparse, by cost)") == "fedmatch-sparse-by-cost"


def test_settings_are_those_that_are_not_the_default() -> None:
    experiment = Experiment.read(None, [*TINY, "method=fedsiam-d", "method.mu=0.4", "seed=3", "engine.chunk=4"])
    settings = settings_of(experiment)
    assert settings["method.mu"] == 0.4
    assert settings["data"] == "synthetic"
    assert not [key for key in settings if key.startswith(("engine", "seed", "method.alpha", "server"))]
    assert settings == settings_of(experiment.replace("seed=0", "engine.workers=2"))


def test_cells_are_filled_by_settings(small: str) -> None:
    preset = presets.read(small)
    one, two, same = preset.cells
    scores = {"online": {"last": 50.0, "kept": 51.0}, "target": {"last": 60.0, "best": 62.0, "kept": 61.0}}
    entries = [Entry(settings_of(two.experiment), seed, scores, {}) for seed in (0, 1)]
    lines = fill(preset.cells, "kept", 3, Book(entries))
    assert [line.seeds for line in lines] == [[], [0, 1], []]
    assert (lines[1].ours, lines[1].last, lines[1].difference) == ([61, 61], [60, 60], 11)
    assert [row[-1] for row in text_table(preset, lines, 3).rows] == [
        "not run",
        "1 of 3 seeds not run (1)",
        "not run",
    ]
    told = text_table(preset, lines, 3)
    assert told.notes == ["our own reason"]
    assert markdown(told).endswith("\n\n(1) our own reason\n")
    assert latex(told).endswith("\\end{tabular}\n\n(1) our own reason\n")
    assert tally(lines, 3) == "0 of 3 cells filled with 3 seeds, 1 in part, 2 not run"
    assert tally(lines, 2) == "1 of 3 cells filled with 2 seeds, 2 not run"
    # The third cell is the experiment of the first, so it asks for no run of its own.
    assert [point.name for point in missing(preset.cells, 2, Book(entries))] == [
        "mnist,iid,0.1,one,seed=0",
        "mnist,iid,0.1,one,seed=1",
    ]
    assert len(missing(preset.cells, 2)) == 4
    assert missing([two], 1)[0].experiment == two.experiment.replace("seed=0")
    assert one.experiment == same.experiment


def test_runs_go_into_the_ledger_and_come_back(small: str, tmp_path: Path) -> None:
    book = tmp_path / "ledger"
    words = ["reproduce", small, "--seeds", "2", "--ledger", str(book), "--quiet"]
    said = call(*words, "--run", "--record", "--json")
    assert said.code == 0, said
    answer = json.loads(said.out)
    assert [(one["seeds"], one["paper"]) for one in answer] == [(2, 50.0)] * 3
    runs = collect([tmp_path / "runs" / "reproduce" / "toy-table"])
    assert len(runs) == 4
    second = presets.read(small).cells[1:2]  # a folder may hold runs of other tables, which this one does not record
    assert of_cells(second, runs) == [one for one in runs if one.method == "fedsiam-d"]
    target = [one for one in runs if one.method == "fedsiam-d"]
    kept = [min(one.rows, key=lambda row: row["models"]["target"]["loss"])["models"]["target"] for one in target]
    assert answer[1]["ours"] == pytest.approx(sum(score["accuracy"] for score in kept) / 2, abs=1e-3)
    # From the ledger alone it is the same, and nothing is left to run; another seed is.
    assert json.loads(call(*words, "--run", "--out", str(tmp_path / "other"), "--json").out) == answer
    assert not (tmp_path / "other").exists()
    (tmp_path / "runs").rename(tmp_path / "gone")
    assert json.loads(call(*words, "--json").out) == answer
    assert read_csv(call(*words, "--format", "csv").out) == answer
    assert "| MNIST | IID | 0.1 | One | 50.00 |" in call(*words, "--format", "markdown").out
    facts = ledger.read(book)[0].facts
    assert {"date", "commit", "semifed", "rounds", "bytes", "seconds", "split"} <= set(facts)
    assert call(*words, "--again").line.endswith("goes with --run only; add it")
    elsewhere = call("reproduce", small, "--ledger", str(tmp_path / "elsewhere"))
    assert (elsewhere.code, "there is no folder" in elsewhere.line) == (2, True)
    for content in ("{}", '{"runs": [{}]}', '{"runs": null}', '{"runs": [1]}'):
        (book / "toy-table.json").write_text(content)
        with pytest.raises(RunError, match="not a file of the ledger"):
            ledger.read(book)


def test_a_dry_run_says_what_is_missing_and_what_it_takes(small: str, tmp_path: Path) -> None:
    words = ["reproduce", small, "--method", "one", "--seeds", "2", "--ledger", str(tmp_path), "--dry-run", "--json"]
    answer = json.loads(call(*words).out)
    assert [one["name"] for one in answer["runs"]] == ["mnist,iid,0.1,one,seed=0", "mnist,iid,0.1,one,seed=1"]
    assert not (tmp_path / "runs").exists()


def test_a_dry_run_leaves_out_what_is_finished(small: str, tmp_path: Path) -> None:
    words = ["reproduce", small, "--ledger", str(tmp_path), "--out", str(tmp_path / "out"), "--seeds", "1", "--run"]
    assert call(*words, "--quiet", "--method", "one").code == 0
    names = [one["name"] for one in json.loads(call(*words, "--dry-run", "--json").out)["runs"]]
    assert len(names) == len(missing(presets.read(small).cells, 1)) - 1


def test_seeds_are_counted_from_0(small: str) -> None:
    preset = presets.read(small)
    scores = {"global": {"last": 50.0, "best": 50.0, "kept": 51.0}}
    entries = [Entry(settings_of(preset.cells[0].experiment), seed, scores, {}) for seed in (0, 1, 3)]
    found = [fill(preset.cells, "kept", seeds, Book(entries))[0].seeds for seeds in (1, 2, 3, 4)]
    assert found == [[0], [0, 1], [0, 1], [0, 1, 3]]


def test_each_scale_has_its_own_folder(small: str) -> None:
    assert [presets.read(small, scale).folder for scale in presets.scales(small)] == ["toy-table", "toy-table-reduced"]


def test_what_fills_no_cell_is_said_and_begins_no_ledger(small: str, finished: Path, tmp_path: Path) -> None:
    words = ["reproduce", small, "--ledger", str(tmp_path / "book"), "--out", str(finished), "--record"]
    said = call(*words)
    assert f"1 runs fill no cell of {small}: finished" in said.err
    assert "0 runs recorded" in said.err
    assert not (tmp_path / "book").exists()


def test_a_reduced_scale_is_another_experiment(small: str, tmp_path: Path) -> None:
    cell = presets.read(small, "reduced").cells[0]
    run(cell.experiment, tmp_path / "run")
    entries = [ledger.entry(one) for one in collect([tmp_path / "run"])]
    paper = fill(presets.read(small).cells, "last", 3, Book(entries))
    preset = presets.read(small, "reduced")
    reduced = fill(preset.cells, "last", 3, Book(entries))
    assert [len(line.seeds) for line in paper] == [0, 0, 0]
    assert [len(line.seeds) for line in reduced] == [1, 0, 1]
    assert [one["last"] for one in records(preset, reduced)][1] is None
    assert {(one["scale"], one["round"]) for one in records(preset, reduced)} == {("reduced", "kept")}
    title = "A small table; ours: the round of the lowest test loss; scale reduced: one round"
    assert text_table(preset, reduced, 3).title == title
    assert text_table(presets.read(small), paper, 3).title == title.partition("; scale")[0]


def test_runs_that_cannot_fill_a_cell_are_left_out_and_named(small: str, tmp_path: Path) -> None:
    words = ["reproduce", small, "--ledger", str(tmp_path / "book"), "--out", str(tmp_path / "out")]
    said = call(*words, "--record")
    assert (said.code, "out: there is no such folder" in said.line) == (4, True)  # a typing error is no empty table
    cell = presets.read(small).cells[0].experiment
    for name in ("good", "killed", "changed", "foreign", "other"):
        run(cell, tmp_path / "out" / name)
    (tmp_path / "out" / "killed" / "summary.json").unlink()
    (tmp_path / "out" / "changed" / "overrides.txt").write_text("after round 1: client.lr: 0.5 -> 0.01\n")
    experiment = tmp_path / "out" / "foreign" / "experiment.toml"
    experiment.write_text("colour = 1\n" + experiment.read_text())
    said = call(*words, "--record")
    assert (said.code, "1 runs are left out (not finished): killed" in said.err) == (0, True)
    assert "(changed on the way, after round 1: client.lr: 0.5 -> 0.01; run it anew): changed" in said.err
    assert "(colour: no such setting;" in said.err
    assert "2 runs recorded" in said.err
    assert len(ledger.read(tmp_path / "book")) == 1  # both have the settings and the seed of one cell
    (tmp_path / "out" / "other" / "rounds.jsonl").write_text("")
    assert "rounds.jsonl: lacks rounds" in call(*words).line


def test_a_collapsed_run_is_said_in_its_cell(small: str) -> None:
    preset = presets.read(small)
    scores = {"global": {"last": 50.0, "best": 50.0, "kept": 51.0}}
    settings = settings_of(preset.cells[0].experiment)
    entries = [
        Entry(settings, seed, scores, {"status": status}) for seed, status in enumerate(["finished", "collapsed"])
    ]
    lines = fill(preset.cells, "kept", 3, Book(entries))
    assert text_table(preset, lines, 2).rows[0][-1] == "1 of 2 collapsed and ended early"


def test_two_that_record_at_once_lose_nothing(finished: Path, tmp_path: Path) -> None:
    (found,) = collect([finished])

    def record(seed: int) -> int:
        again = dataclasses.replace(found, experiment={**found.experiment, "seed": seed})
        return ledger.record("toy/table", [again], tmp_path)

    with ThreadPoolExecutor(4) as several:
        assert sum(several.map(record, range(12))) == 12
    assert sorted(one.seed for one in ledger.read(tmp_path)) == list(range(12))
    with pytest.raises(RunError, match="give another --ledger"):
        ledger.record("toy/table", [found], tmp_path / "toy-table.json")


def test_all_presets_are_listed(small: str) -> None:
    said = call("reproduce")
    assert (said.code, "A small table" in said.out) == (0, True)
    assert call("reproduce", "toy/tabel").line.endswith("did you mean toy/table?")
