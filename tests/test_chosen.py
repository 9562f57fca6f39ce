"""What is chosen or noted for the user: a net where none is named, versions that change, options without effect."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from album import CLASSES, album
from semifed import Dataset, Experiment, examine, run
from semifed.engine import environment
from semifed.engine.assemble import prepare
from semifed.engine.site_data import Place, load, task_of
from semifed.errors import DataError, SettingError
from semifed.methods import METHODS
from toys import TINY, call, rows_in, same_end, sets, summary_in

SHORT = ("scenario.clients=3", "train.rounds=2", "client.epochs=1")


def test_a_run_without_a_net_names_the_one_it_took_and_goes_on_with_it(tmp_path: Path) -> None:
    photos = album(tmp_path / "photos")
    words = sets(f"data=folder:{photos}", *SHORT)
    said = call("run", *words, "--out", str(tmp_path / "one"))
    assert said.code == 0, said
    note = "no net is named, so small-cnn with 27,939 parameters is taken, as it is quick and fits images of 3x12x12"
    assert note in said.err
    assert any(note in one for one in json.loads((tmp_path / "one" / "environment.json").read_text())["notices"])
    assert 'name = "small-cnn"' in (tmp_path / "one" / "experiment.toml").read_text()
    assert call("run", str(tmp_path / "one" / "experiment.toml"), "--out", str(tmp_path / "two")).code == 0
    assert same_end(tmp_path / "one", tmp_path / "two")
    more = call("run", *words, *sets("train.rounds=3"), "--out", str(tmp_path / "one"), "--resume", "--override")
    assert more.code == 0, more
    assert len(rows_in(tmp_path / "one")) == 3
    assert call("predict", str(tmp_path / "one"), str(photos / "unlabelled"), "-o", str(tmp_path / "p.csv")).code == 0


def test_experiments_on_digits_that_name_no_net_keep_theirs() -> None:
    assembly = prepare(Experiment.read(None, SHORT))
    assert assembly.net.name == "mnist-cnn"
    assert assembly.experiment.tables()["net"]["name"] == "mnist-cnn"
    own = prepare(Experiment.read(None, [*SHORT, "net.norm=group"]))
    assert own.experiment.tables()["net"] == {"name": "mnist-cnn", "norm": "group", "head": None}


def test_other_versions_are_told_and_noted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, words = tmp_path / "run", sets(*TINY)
    assert call("run", *words, "--out", str(folder), *sets("train.rounds=2")).code == 0
    now = environment.versions()
    later = {**now, "torch": "9.0.0"}
    monkeypatch.setattr("semifed.engine.resuming.versions", lambda: later)
    longer = ("--out", str(folder), "--resume", "--override")
    said = call("run", *longer, *sets("train.rounds=3"))
    assert said.code == 0, said
    assert f"the run goes on with torch 9.0.0, and was with {now['torch']}" in said.err
    facts = json.loads((folder / "environment.json").read_text())
    assert facts["torch"] == now["torch"]
    assert facts["resumed"] == [{"round": 2, "versions": {"torch": "9.0.0"}}]
    again = call("run", *longer, *sets("train.rounds=4"))
    assert (again.code, "goes on with torch" in again.err) == (0, False)
    assert summary_in(folder)["rounds"] == 4


def test_a_split_does_not_ask_how_many_clients_a_round_has(tmp_path: Path) -> None:
    file = tmp_path / "exp.toml"
    file.write_text('data = "synthetic"\nmethod = "fedcon"\n[train]\nclients_per_round = 50\n')
    said = call("split", "show", str(file), *sets("scenario.clients=4"))
    assert said.code == 0, said
    assert call("split", "make", str(tmp_path / "s"), str(file), *sets("scenario.clients=4")).code == 0
    assert "did you mean train" in call("split", "show", *sets("trian.rounds=1")).line


@pytest.mark.parametrize("name", ["ssfl", "local-sl", "local-fixmatch"])
def test_an_option_without_effect_is_neither_listed_nor_taken(name: str) -> None:
    listed = json.loads(call("list", "methods", "--json").out)
    assert "weighting" not in [option["name"] for option in listed[name]["options"]]
    assert "weighting" in [option["name"] for option in listed["fedavg+"]["options"]]
    other = "uniform" if METHODS[name]().weighting == "examples" else "examples"
    with pytest.raises(SettingError, match=rf"method\.weighting: has no effect in {name}; leave it out"):
        Experiment.read(None, [f"method={name}", f"method.weighting={other}"])


# a site with images of one class


def one_class(tmp_path: Path) -> Path:
    """A folder with labelled images of a single class."""
    photos = album(tmp_path / "photos")
    for name in CLASSES[1:]:
        for part in ("train", "test"):
            for path in (photos / part / name).iterdir():
                path.unlink()
            (photos / part / name).rmdir()
    return photos


def test_a_site_may_hold_images_of_one_class(tmp_path: Path) -> None:
    everything = album(tmp_path / "server")
    experiment = Experiment.read(None, [f"data=folder:{everything}", *SHORT])
    task = task_of(prepare(experiment).dataset)
    dataset, scenario = load(f"folder:{one_class(tmp_path)}", experiment, Place(1, 3, task), None)
    held = dataset.labels[torch.tensor(scenario.clients[1].labelled)]
    assert set(held.tolist()) == {CLASSES.index(CLASSES[0])}
    assert dataset.classes == CLASSES


def test_a_run_of_its_own_needs_two_and_the_doctor_says_so(tmp_path: Path) -> None:
    photos = one_class(tmp_path)
    named = f"files.classes={json.dumps(list(CLASSES))}"
    experiment = Experiment.read(None, [f"data=folder:{photos}", named, *SHORT])
    report = examine(experiment)
    assert report.errors == 0
    told = {finding.kind for finding in report.findings}
    assert {"class without a label", "a run of this site alone would be refused"} <= told
    images = torch.zeros(9, 1, 8, 8, dtype=torch.uint8)
    data = Dataset("one", images, torch.zeros(9, dtype=torch.int64), 6, ("a", "b"), (0.5,), (0.5,), flips=False)
    with pytest.raises(DataError, match="all training samples are of the class 'a', so there is nothing to tell apart"):
        run(dataclasses.replace(Experiment.read(None, SHORT), data=data))
