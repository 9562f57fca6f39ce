"""After training: predictions, what to label next, exports that say the same, and the card."""

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import semifed
from semifed import Experiment, Model
from semifed.data import sources
from semifed.nets import zoo
from semifed.trained.choice import doubt, spread
from semifed.trained.export import TOLERANCE
from semifed.trained.model import Taken
from toys import TINY, call, tiny

DATA = sources.load("synthetic")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small finished run."""
    path = tmp_path_factory.mktemp("runs") / "tiny"
    semifed.run(Experiment.read(None, TINY), path)
    return path


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The test images as files, some in a folder inside."""
    folder = tmp_path_factory.mktemp("photos")
    (folder / "more").mkdir()
    for place in range(20):
        image = Image.fromarray(DATA.images[DATA.train + place, 0].numpy())
        image.save(folder / ("more" if place % 2 else ".") / f"{place:02d}.png")
    (folder / "notes.txt").write_text("not an image")
    return folder


def table(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


# predict


def test_predictions_are_what_the_run_itself_tested(trained: Path) -> None:
    model = Model.load(trained)
    guesses = model.probabilities(DATA.images[DATA.train :]).argmax(1)
    right = float((guesses == DATA.labels[DATA.train :]).float().mean()) * 100
    summary = json.loads((trained / "summary.json").read_text())
    assert right == pytest.approx(summary["models"]["global"]["last"]["accuracy"])


def test_a_folder_becomes_a_csv(trained: Path, photos: Path) -> None:
    said = call("predict", str(trained), str(photos), "--all")
    assert said.code == 0
    rows = table(said.out)
    assert [row["file"] for row in rows] == sorted(row["file"] for row in rows)
    assert {row["file"] for row in rows} >= {"00.png", "more/01.png"}
    wanted = Model.load(trained).probabilities(DATA.images[DATA.train : DATA.train + 20])
    for row in rows:
        own = wanted[int(Path(row["file"]).stem)]
        assert row["class"] == DATA.classes[int(own.argmax())]
        assert float(row["probability"]) == pytest.approx(float(own.max()), abs=1e-6)
        assert [float(row[name]) for name in DATA.classes] == pytest.approx(own.tolist(), abs=1e-6)


def test_predictions_go_to_a_file_or_come_as_json(trained: Path, photos: Path, tmp_path: Path) -> None:
    said = call("predict", str(trained), str(photos), "-o", str(tmp_path / "out.csv"))
    assert (said.code, said.out) == (0, "")
    rows = table((tmp_path / "out.csv").read_text())
    found = json.loads(call("predict", str(trained), str(photos), "--json", "--all").out)
    assert [one["class"] for one in found] == [row["class"] for row in rows]
    assert sum(found[0]["probabilities"].values()) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("layout", ["NHW", "NCHW", "NHWC"])
def test_an_npz_in_any_usual_layout_is_read(trained: Path, tmp_path: Path, layout: str) -> None:
    pixels = DATA.images[DATA.train : DATA.train + 7].numpy()
    shaped = {"NHW": pixels[:, 0], "NCHW": pixels, "NHWC": pixels.transpose(0, 2, 3, 1)}[layout]
    np.savez(tmp_path / "some.npz", images=shaped, labels=np.zeros(7))
    rows = table(call("predict", str(trained), str(tmp_path / "some.npz")).out)
    guesses = Model.load(trained).probabilities(torch.from_numpy(pixels)).argmax(1)
    assert [row["class"] for row in rows] == [DATA.classes[place] for place in guesses]


def test_another_size_is_refused_or_resized(trained: Path, tmp_path: Path) -> None:
    Image.new("RGB", (30, 20), (200, 10, 10)).save(tmp_path / "big.jpg")
    said = call("predict", str(trained), str(tmp_path))
    assert said.code == 3
    assert "big.jpg: is 30x20, but the model was trained on images of 12x12" in said.line
    assert "--resize" in said.line
    assert len(table(call("predict", str(trained), str(tmp_path), "--resize").out)) == 1


@pytest.mark.filterwarnings("default")
def test_a_broken_image_is_named_and_can_be_left_out(trained: Path, photos: Path, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"not a picture")
    (tmp_path / "b.png").write_bytes((photos / "00.png").read_bytes())
    said = call("predict", str(trained), str(tmp_path))
    assert said.code == 3
    assert "a.png: is not an image of a format that is read" in said.line
    said = call("predict", str(trained), str(tmp_path), "--skip-corrupt")
    assert [row["file"] for row in table(said.out)] == ["b.png"]
    assert "a.png" in said.err


def test_what_is_no_run_no_model_or_no_image_is_told(trained: Path, photos: Path, tmp_path: Path) -> None:
    assert "is not the folder of a run" in call("predict", str(tmp_path), str(photos)).line
    (tmp_path / "experiment.toml").write_bytes((trained / "experiment.toml").read_bytes())
    assert "has no model yet" in call("predict", str(tmp_path), str(photos)).line
    assert "there is no such file or folder" in call("predict", str(trained), str(tmp_path / "gone")).line
    assert "holds no images" in call("predict", str(trained), str(tmp_path)).line
    np.savez(tmp_path / "odd.npz", images=np.zeros((3, 5, 5), np.uint8))
    assert "is uint8 of shape 3x5x5" in call("predict", str(trained), str(tmp_path / "odd.npz")).line
    (tmp_path / "bad.npz").write_bytes(b"zip?")
    assert "is not a readable npz" in call("predict", str(trained), str(tmp_path / "bad.npz")).line


def test_a_run_with_a_net_of_ones_own_is_loaded_with_it(tmp_path: Path, photos: Path) -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(144, 4))
    experiment = Experiment.of({**Experiment.read(None, TINY).tables(), "net": net, "data": DATA})
    semifed.run(experiment, tmp_path / "own")
    assert "semifed.Model.load(run, net=...)" in call("predict", str(tmp_path / "own"), str(photos)).line
    assert Model.load(tmp_path / "own", net).probabilities(DATA.images[:3]).shape == (3, 4)
    other = nn.Sequential(nn.Flatten(), nn.Linear(144, 5))
    with pytest.raises(semifed.SemifedError, match="does not fit the net"):
        Model.load(tmp_path / "own", other)


def test_a_run_from_before_its_input_was_noted_is_read_with_its_data(trained: Path, tmp_path: Path) -> None:
    for name in ("experiment.toml", "model.safetensors", "environment.json"):
        (tmp_path / name).write_bytes((trained / name).read_bytes())
    facts = json.loads((tmp_path / "environment.json").read_text())
    del facts["input"]
    (tmp_path / "environment.json").write_text(json.dumps(facts))
    assert Model.load(tmp_path).taken == Model.load(trained).taken


# next


def test_the_least_sure_come_first_and_no_image_twice(trained: Path, photos: Path) -> None:
    said = call("next", str(trained), str(photos), "-n", "6")
    rows = table(said.out)
    assert [row["rank"] for row in rows] == list("123456")
    assert len({row["file"] for row in rows}) == 6
    assert float(rows[0]["unsure"]) == max(float(row["unsure"]) for row in rows)
    assert said == call("next", str(trained), str(photos), "-n", "6")
    found = json.loads(call("next", str(trained), str(photos), "-n", "6", "--json").out)
    assert [one["file"] for one in found] == [row["file"] for row in rows]
    assert len(table(call("next", str(trained), str(photos), "-n", "999").out)) == 20
    assert call("next", str(trained), str(photos), "-n", "0").code == 2


def test_doubt_is_the_margin_of_the_two_likeliest() -> None:
    rows = torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0], [0.5, 0.3, 0.2]])
    assert doubt(rows).tolist() == pytest.approx([1.0, 0.0, 0.8])


def test_a_twin_waits_until_everything_else_is_chosen() -> None:
    points = torch.tensor([[0.0, 0.0], [0.0, 0.0], [1.0, 0.0], [0.0, 9.0]])
    assert spread(torch.tensor([0.9, 0.9, 0.9, 0.5]), points, 4).tolist() == [0, 3, 2, 1]


# export


def test_every_format_says_the_same_and_comes_with_a_card(trained: Path, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="needs the extra `export`")
    words = [word for name in ("onnx", "torch", "safetensors") for word in ("--format", name)]
    said = call("export", str(trained), *words, "-o", str(tmp_path), "--json")
    assert said.code == 0, said.err
    assert {"onnx", "torch", "safetensors", "card"} <= set(json.loads(said.out))
    images = DATA.images[DATA.train :]
    ours = Model.load(trained).probabilities(images)
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    _, theirs = session.run(None, {"images": images.numpy()})
    assert float((torch.from_numpy(theirs) - ours).abs().max()) < TOLERANCE
    program = torch.export.load(tmp_path / "model.pt2").module()
    assert torch.allclose(program(images[:5])[1], ours[:5], atol=TOLERANCE)
    card = (tmp_path / "README.md").read_text()
    assert "# fedavg on synthetic" in card
    assert "stripes, bars, chequers, square" in card
    summary = json.loads((trained / "summary.json").read_text())
    assert f"{summary['models']['global']['last']['accuracy']:.2f} (round 4)" in card


def test_the_python_of_a_card_runs(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    semifed.export(Model.load(trained), tmp_path, ["safetensors", "torch"])
    monkeypatch.chdir(tmp_path)
    text = (tmp_path / "README.md").read_text()
    code = "\n".join(block.partition("```")[0] for block in text.split("```python\n")[1:])
    names: dict[str, torch.Tensor] = {}
    exec(compile(code, "card", "exec"), names)  # noqa: S102
    assert names["probabilities"].shape == (1, 4)


def test_without_the_extra_the_error_names_it(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    said = call("export", str(trained), "--format", "onnx")
    assert said.code == 2
    assert "pip install 'semifed[export]'" in said.line


def test_a_program_that_differs_is_not_kept(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Model, "probabilities", lambda _, images: torch.zeros(len(images), 4))
    said = call("export", str(trained), "--format", "torch", "-o", str(tmp_path))
    assert said.code == 1
    assert "differs from ours" in said.line
    assert not list(tmp_path.iterdir())


def test_without_a_format_the_run_gets_numbers_and_card(tmp_path: Path) -> None:
    assert call(*tiny(tmp_path / "run", "train.rounds=1")).code == 0
    said = call("export", str(tmp_path / "run"))
    assert said.code == 0
    assert {path.name for path in (tmp_path / "run" / "export").iterdir()} == {
        "model.safetensors", "model.json", "README.md",
    }  # fmt: skip


@pytest.mark.parametrize("name", [name for name in zoo.NETS if name != "mlp"])
@pytest.mark.parametrize("norm", ["batch", "group", "none"])
def test_every_net_exports_to_onnx_with_the_same_predictions(name: str, norm: zoo.Norm, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="needs the extra `export`")
    shape = (1, 28, 28) if name == "mnist-cnn" else (3, 32, 32)
    taken = Taken(shape, (0.4,) * shape[0], (0.3,) * shape[0], tuple("abcdefghij"))
    net = zoo.make(zoo.NetSettings(name, norm), shape, 10)
    params = {key: value + 0.01 if value.is_floating_point() else value for key, value in net.init(1).items()}
    model = Model(tmp_path, net, params, taken)
    from semifed.trained import export

    images = torch.randint(0, 256, (64, *shape), dtype=torch.uint8)
    files = export._as_onnx(model, tmp_path, images)
    session = onnxruntime.InferenceSession(files["onnx"])
    _, said = session.run(None, {"images": images[:33].numpy()})
    assert float((torch.from_numpy(said) - model.probabilities(images[:33])).abs().max()) < TOLERANCE
