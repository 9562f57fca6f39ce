"""Arrays and tables of a user's own: images and vectors from npz, parquet, CSV and Hugging Face."""

import io
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

import semifed
from album import CLASSES, picture
from semifed import keys
from semifed.data.file_settings import FileSettings
from semifed.data.own import load
from semifed.data.sources import Dataset
from semifed.data.vector_views import vector_views
from semifed.data.views import ViewSettings
from semifed.errors import DataError, SettingError
from semifed.experiment import Experiment

QUICK = ("scenario.clients=4", "train.clients_per_round=4", "train.rounds=5", "client.epochs=2", "client.lr=0.1")


def encoded(kind: str, number: int) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(picture(kind, number)).save(stream, "PNG")
    return stream.getvalue()


def clouds(count: int, columns: int = 6, seed: int = 0) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Rows of numbers of very different scale around three centres."""
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % 3
    centres = np.random.default_rng(99).normal(size=(3, columns)) * 3
    scale = 10.0 ** np.arange(columns)
    return ((centres[labels] + rng.normal(size=(count, columns))) * scale + 5 * scale).astype(np.float32), labels


@pytest.mark.parametrize(
    ("shape", "dtype", "wanted"),
    [
        ((30, 8, 6), np.uint8, (1, 8, 6)),
        ((30, 8, 6, 3), np.uint8, (3, 8, 6)),
        ((30, 5, 8, 6), np.uint8, (5, 8, 6)),
        ((30, 8, 8, 2), np.float32, (2, 8, 8)),
        ((30, 8, 6), np.uint16, (1, 8, 6)),
        ((30, 7), np.float64, (7,)),
        ((30, 7), np.int32, (7,)),
    ],
)
def test_arrays_of_any_layout(tmp_path: Path, shape: tuple[int, ...], dtype: Any, wanted: tuple[int, ...]) -> None:
    top = 1 if np.dtype(dtype).kind == "f" else 60000 if dtype == np.uint16 else 255
    x = (np.random.default_rng(0).random(shape) * top).astype(dtype)
    half = x[:6] / 2 if top == 1 else x[:6] // 2
    np.savez(tmp_path / "mine.npz", x_train=x, y_train=np.arange(30)[:, None] % 3, x_test=half, y_test=np.arange(6) % 3,
             unlabelled=x[:4], classes=np.array(CLASSES), val_images=x)  # fmt: skip
    data = load(f"npz:{tmp_path / 'mine.npz'}")
    assert tuple(data.images.shape) == (40, *wanted)
    assert data.train == 34
    assert (data.labels < 0).sum() == 4
    assert data.classes == CLASSES
    assert data.notes == ("mine.npz: not read: val_images",)
    assert data.vectors == (len(wanted) == 1)
    if len(wanted) == 3 and wanted[0] in (1, 3):
        small = load(f"npz:{tmp_path / 'mine.npz'}", files=FileSettings(size=4, colour="colour"))
        assert small.images.shape[1:] == (3, 4, 4)


@pytest.mark.parametrize(
    ("arrays", "problem"),
    [
        ({"images": np.zeros((3, 4, 4))}, "has the arrays images; wanted x_train and y_train"),
        ({"x": np.zeros((3, 4, 4), np.uint8), "y": [0, 1, 5.5]}, "label 5.5 of sample 2 is not a whole number"),
        ({"x": np.zeros((3, 4, 4), np.uint8), "y": [0, 1, -3]}, "label -3 of sample 2 is not in 0 to 1, nor -1"),
        ({"x": np.zeros((3, 4, 4), np.uint8), "y": [0, 1]}, "y has 2 labels for 3 samples"),
        ({"x": np.full((3, 4, 4), 300.0), "y": [0, 1, 0]}, "pixels are float64 from 300 to 300"),
        ({"x": np.array([[0, np.nan]] * 3), "y": [0, 1, 0]}, "row 0 has no number in column 1"),
        ({"x": np.zeros((3, 4, 4), np.uint8), "y": [0, 1, 0], "x_test": np.zeros((1, 4, 4))}, "one of them is missing"),
        ({"x": np.array([{"a": 1}] * 3, dtype=object), "y": [0, 1, 0]}, "is not a readable npz file"),
        ({"x": np.zeros(3), "y": [0, 1, 0]}, r"has shape \(3,\), wanted"),
    ],
)
def test_arrays_that_cannot_be_meant_are_refused(tmp_path: Path, arrays: dict[str, Any], problem: str) -> None:
    np.savez(tmp_path / "bad.npz", **arrays)
    with pytest.raises(DataError, match=problem) as caught:
        load(f"npz:{tmp_path / 'bad.npz'}")
    assert "bad.npz" in str(caught.value)


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    for kind in ("npz", "parquet", "csv", "folder"):
        with pytest.raises(DataError, match=r"there is no such|cannot be"):
            load(f"{kind}:{tmp_path / 'nothing'}")
    path = tmp_path / "noise"
    path.write_bytes(b"\x00\xff" * 50)
    for kind in ("npz", "parquet"):
        with pytest.raises(DataError, match=f"noise: is not a readable {kind} file"):
            load(f"{kind}:{path}")


def test_parquet_of_images_with_blanks_and_corrupt_rows(tmp_path: Path) -> None:
    cells = [{"bytes": encoded(kind, number), "path": None} for kind in CLASSES for number in range(6)]
    labels = [kind if number < 4 else None for kind in CLASSES for number in range(6)]
    table = pyarrow.table({"image": cells, "label": labels})
    pyarrow.parquet.write_table(table, tmp_path / "train.parquet")
    pyarrow.parquet.write_table(table.slice(0, 3), tmp_path / "test.parquet")
    data = load(f"parquet:{tmp_path}")
    assert data.train == 18
    assert len(data.images) == 21
    assert (data.labels < 0).sum() == 6
    cells[2]["bytes"] = encoded("dark", 2)[:50]
    pyarrow.parquet.write_table(pyarrow.table({"image": cells, "label": labels}), tmp_path / "one.parquet")
    with pytest.raises(DataError, match=r"1 of 18 images cannot be used, the first in row 2 \(cannot be read"):
        load(f"parquet:{tmp_path / 'one.parquet'}")
    assert "left out" in load(f"parquet:{tmp_path / 'one.parquet'}", skip_corrupt=True).notes[0]


def test_a_table_of_columns_as_csv_and_as_parquet(tmp_path: Path) -> None:
    x, y = clouds(90)
    names = [f"c{number}" for number in range(6)]
    rows = [",".join([*map(str, row), CLASSES[label] if place % 3 or place < 60 else ""]) + "\n"
            for place, (row, label) in enumerate(zip(x, y, strict=True))]  # fmt: skip
    (tmp_path / "t.csv").write_text(",".join([*names, "kind"]) + "\n" + "".join(rows))
    settings = FileSettings(label="kind")
    data = load(f"csv:{tmp_path / 't.csv'}", files=settings)
    assert data.vectors
    assert data.classes == CLASSES
    assert (data.labels < 0).sum() == 10
    assert "16 of 80 labelled samples" in data.notes[0]
    said = [CLASSES[label] if place % 3 or place < 60 else None for place, label in enumerate(y)]
    columns: dict[str, Any] = {name: x[:, place] for place, name in enumerate(names)}
    pyarrow.parquet.write_table(pyarrow.table({**columns, "kind": said}), tmp_path / "t.parquet")
    other = load(f"parquet:{tmp_path / 't.parquet'}", files=settings)
    assert torch.equal(other.labels.sort().values, data.labels.sort().values)
    assert torch.allclose(torch.tensor(other.mean), torch.tensor(data.mean), rtol=0.2)
    with pytest.raises(DataError, match=r"name the label's with files\.label"):
        load(f"csv:{tmp_path / 't.csv'}")
    (tmp_path / "bad.csv").write_text("a,b,label\n1,x,u\n2,y,v\n")
    with pytest.raises(DataError, match="column b holds string, wanted numbers"):
        load(f"csv:{tmp_path / 'bad.csv'}")
    (tmp_path / "gap.csv").write_text("a,b,label\n1,2,u\n2,,v\n")
    with pytest.raises(DataError, match="column b has 1 blanks, the first in row 1"):
        load(f"csv:{tmp_path / 'gap.csv'}")


@pytest.mark.parametrize("method", ["fedavg+", "fedavg-fixmatch", "fedsiam-d"])
def test_vectors_train_with_views_of_their_own(method: str) -> None:
    x, y = clouds(360)
    labels = torch.from_numpy(y.copy())
    labels[60:300] = -1
    samples, first = torch.from_numpy(x), torch.from_numpy(x[:300])
    mean, std = tuple(first.mean(0).tolist()), tuple(first.std(0).tolist())
    data = Dataset("rows", samples, labels, 300, CLASSES, mean, std, flips=False)
    experiment = Experiment.read(None, [f"method={method}", "net=mlp", *QUICK])
    tables = {name: getattr(experiment, name) for name in ("method", "net", "scenario", "train", "client")}
    record = semifed.run(Experiment(data=data, **tables))
    assert record.rows[-1]["models"].popitem()[1]["accuracy"] > 90


def test_what_needs_images_is_refused_for_vectors(tmp_path: Path) -> None:
    x, y = clouds(60)
    np.savez(tmp_path / "rows.npz", x=x, y=y)
    words = [f"data=npz:{tmp_path / 'rows.npz'}", *QUICK]
    with pytest.raises(SettingError, match=r"mnist-cnn takes images, but the data are vectors of 6 numbers; use net"):
        semifed.run(Experiment.read(None, [*words, "net=mnist-cnn"]))
    with pytest.raises(SettingError, match="fedmix reads samples in the view 'shift', which needs images"):
        semifed.run(Experiment.read(None, [*words, "net=mlp", "method=fedmix", "scenario.labels=server"]))


def test_vector_views_are_drawn_from_the_key_alone() -> None:
    rows, own = torch.from_numpy(clouds(500)[0]), keys.fold(torch.tensor(3), torch.arange(500))
    mean, std = rows.mean(0).tolist(), rows.std(0).tolist()
    views = vector_views(ViewSettings(noise=0.2, mask=0.4), mean, std)
    clean, weak, strong = (views[name](rows, own) for name in ("clean", "weak", "strong"))
    assert clean.mean(0).abs().max() < 1e-2
    assert (weak - clean).std() == pytest.approx(0.2, rel=0.05)
    assert (strong == 0).float().mean() == pytest.approx(0.4, abs=0.03)
    kept = strong != 0
    assert (strong - clean)[kept].std() == pytest.approx(0.6, rel=0.05)
    assert torch.equal(views["strong"](rows[7:9], own[7:9]), strong[7:9])


def test_a_saved_hugging_face_data_set(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="needs the extra hf")
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=list(CLASSES))})
    cells = [{"bytes": encoded(kind, number), "path": None} for kind in CLASSES for number in range(5)]
    labels = [-1 if number == 4 else CLASSES.index(kind) for kind in CLASSES for number in range(5)]
    whole = datasets.Dataset.from_dict({"image": cells, "label": labels}, features)
    datasets.DatasetDict({"train": whole, "test": whole.select([0, 5, 10])}).save_to_disk(tmp_path / "saved")
    data = load(f"hf:{tmp_path / 'saved'}")
    assert data.classes == CLASSES
    assert data.train == 15
    assert (data.labels < 0).sum() == 3
    assert np.array_equal(data.images[0].permute(1, 2, 0).numpy(), picture("dark", 0))
    with pytest.raises(DataError, match="hf:no/such-data-set: cannot be loaded"):
        load("hf:no/such-data-set")


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r"pip install 'semifed\[hf\]'"):
        load("hf:anything")
