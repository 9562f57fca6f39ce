"""Each file format from a tiny file made here: read right when whole, refused by name when not."""

import gzip
import hashlib
import io
import tarfile
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import scipy.io
import torch
from numpy.typing import NDArray
from PIL import Image

from semifed.data import decoded
from semifed.data.decoded import read_decoded
from semifed.data.readers import read_cifar, read_idx, read_mat, read_parquet
from semifed.errors import DataError

COUNT = 4
SHAPE = (COUNT, 5, 6)
BATCHES = {"data_batch_1.bin": "", "test_batch.bin": ""}


def noise(*shape: int) -> NDArray[np.uint8]:
    return np.random.default_rng(7).integers(0, 256, shape, dtype=np.uint8)


def idx(array: NDArray[np.uint8]) -> bytes:
    return bytes((0, 0, 8, array.ndim)) + b"".join(n.to_bytes(4, "big") for n in array.shape) + array.tobytes()


def batch(seed: int, label: int = 3) -> bytes:
    table = np.random.default_rng(seed).integers(0, 256, (COUNT, 3073), dtype=np.uint8)
    table[:, 0] = label
    return table.tobytes()


def archive(path: Path, members: dict[str, bytes], kind: bytes = tarfile.REGTYPE) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "elsewhere"
            member.size = len(content) if kind == tarfile.REGTYPE else 0
            tar.addfile(member, io.BytesIO(content))
    return path


def png(array: NDArray[np.uint8]) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(array).save(stream, "PNG")
    return stream.getvalue()


def parquet(path: Path, images: list[bytes | None], labels: list[int | None], column: str = "img") -> Path:
    cells = [{"bytes": image, "path": None} for image in images]
    kind = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
    pyarrow.parquet.write_table(pyarrow.table({"label": labels, column: pyarrow.array(cells, kind)}), path)
    return path


def images(count: int = COUNT) -> list[bytes | None]:
    return [png(array) for array in noise(count, 32, 32, 3)]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", ["file", "file.gz"])
def test_idx_is_read_packed_or_not_whatever_its_name(tmp_path: Path, packed: bool, name: str) -> None:
    content = idx(noise(*SHAPE))
    (tmp_path / name).write_bytes(gzip.compress(content) if packed else content)
    for checksum in ("", hashlib.sha256(content).hexdigest(), hashlib.md5(content, usedforsecurity=False).hexdigest()):
        assert torch.equal(read_idx(tmp_path / name, SHAPE, checksum), torch.from_numpy(noise(*SHAPE)))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (idx(noise(*SHAPE))[:-1], "truncated"),
        (gzip.compress(idx(noise(*SHAPE)))[:-9], "cannot be read"),
        (gzip.compress(idx(noise(*SHAPE)))[:-8] + bytes(8), "CRC"),
        (idx(noise(*SHAPE)) + b"\0", "too long"),
        (gzip.compress(idx(noise(*SHAPE)) + bytes(10**7)), "too long"),
        (idx(noise(COUNT, 6, 5)), "shape"),
        (idx(255 - noise(*SHAPE)), "sha256"),
        (b"", "not an idx file"),
        (b"\x1f\x8bnot a gzip", "cannot be read"),
    ],
    ids=["cut", "cut gz", "bad crc", "long", "bomb", "shape", "checksum", "empty", "no gz"],
)
def test_a_bad_idx_file_is_named_with_a_remedy(tmp_path: Path, content: bytes, problem: str) -> None:
    (tmp_path / "train-images").write_bytes(content)
    with pytest.raises(DataError, match=problem) as caught:
        read_idx(tmp_path / "train-images", SHAPE, hashlib.sha256(idx(noise(*SHAPE))).hexdigest())
    assert str(tmp_path / "train-images") in str(caught.value)
    assert "replace it" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_cifar_reads_the_same_from_folder_and_archive(tmp_path: Path) -> None:
    contents = {name: batch(seed) for seed, name in enumerate(BATCHES)}
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    members = {f"cifar-10-batches-bin/{name}": content for name, content in reversed(contents.items())}
    packed = archive(tmp_path / "cifar.tar.gz", {"cifar-10-batches-bin/readme.html": b"hello", **members})
    first, second = read_cifar(folder, BATCHES, COUNT), read_cifar(packed, BATCHES, COUNT)
    assert torch.equal(first.images, second.images)
    assert first.images.shape == (2 * COUNT, 3, 32, 32)
    assert first.labels.tolist() == second.labels.tolist() == [3] * 2 * COUNT
    record = np.frombuffer(contents["test_batch.bin"], np.uint8)[1:3073].reshape(3, 32, 32)
    assert np.array_equal(first.images[COUNT].numpy(), record)


def test_cifar_checks_lengths_checksums_labels_and_that_all_batches_are_there(tmp_path: Path) -> None:
    def fails(problem: str, batches: dict[str, str]) -> None:
        with pytest.raises(DataError, match=problem):
            read_cifar(tmp_path, batches, COUNT)

    (tmp_path / "a.bin").write_bytes(batch(0))
    fails("b.bin is missing", {"a.bin": "", "b.bin": ""})
    fails("md5", {"a.bin": "0" * 32})
    (tmp_path / "a.bin").write_bytes(batch(0)[:-5])
    fails("a.bin is truncated", {"a.bin": ""})
    (tmp_path / "a.bin").write_bytes(batch(0, label=10))
    fails("label 10 in row 0", {"a.bin": ""})


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("../data_batch_1.bin", tarfile.REGTYPE),
        ("/data_batch_1.bin", tarfile.REGTYPE),
        ("cifar-10-batches-bin/data_batch_1.bin", tarfile.SYMTYPE),
        ("cifar-10-batches-bin/data_batch_1.bin", tarfile.LNKTYPE),
    ],
)
def test_an_archive_with_an_unsafe_member_is_refused(tmp_path: Path, name: str, kind: bytes) -> None:
    path = archive(tmp_path / "cifar.tar.gz", {name: batch(0)}, kind)
    with pytest.raises(DataError, match="unsafe member"):
        read_cifar(path, BATCHES, COUNT)
    assert list(tmp_path.iterdir()) == [path]


def test_a_bomb_a_stub_and_a_broken_archive_are_refused(tmp_path: Path) -> None:
    path = archive(tmp_path / "cifar.tar.gz", {"zeros": bytes(2_000_000)})
    with pytest.raises(DataError, match="unpacks to more than"):
        read_cifar(path, BATCHES, COUNT)
    archive(path, {"data_batch_1.bin": batch(0)[:-1]})
    with pytest.raises(DataError, match=r"no member data_batch_1\.bin"):
        read_cifar(path, BATCHES, COUNT)
    path.write_bytes(gzip.compress(b"no archive" * 100))
    with pytest.raises(DataError, match="not a readable archive"):
        read_cifar(path, BATCHES, COUNT)
    whole = archive(path, {name: batch(0) for name in BATCHES}).read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match="cannot be read"):
        read_cifar(path, BATCHES, COUNT)


def test_mat_counts_ten_as_the_digit_nought(tmp_path: Path) -> None:
    path = tmp_path / "train_32x32.mat"
    pixels = noise(32, 32, 3, COUNT)
    scipy.io.savemat(path, {"X": pixels, "y": np.array([[10], [1], [9], [10]], np.uint8)}, do_compression=True)
    samples = read_mat(path, COUNT)
    assert samples.labels.tolist() == [0, 1, 9, 0]
    assert np.array_equal(samples.images[2, 1].numpy(), pixels[:, :, 1, 2])
    with pytest.raises(DataError, match=r"train_32x32\.mat has md5"):
        read_mat(path, COUNT, "0" * 32)
    with pytest.raises(DataError, match="wanted"):
        read_mat(path, COUNT + 1)
    whole = path.read_bytes()
    for damaged in (whole[: len(whole) // 2], b"", b"MATLAB" * 50, whole[:300] + bytes(200) + whole[500:]):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match="not SVHN's file"):
            read_mat(path, COUNT)
    scipy.io.savemat(path, {"X": pixels, "y": np.array([[11], [1], [9], [10]], np.uint8)})
    with pytest.raises(DataError, match="labels not 1 to 10"):
        read_mat(path, COUNT)
    with pytest.raises(DataError, match="cannot be read"):
        read_mat(tmp_path / "none.mat", COUNT)


@pytest.mark.parametrize("column", ["img", "image"])
def test_parquet_images_are_decoded(tmp_path: Path, column: str) -> None:
    samples, corrupt = read_parquet(parquet(tmp_path / "train.parquet", images(), [0, 9, 3, 3], column), COUNT)
    assert torch.equal(samples.images, torch.from_numpy(noise(COUNT, 32, 32, 3)).permute(0, 3, 1, 2))
    assert samples.images.is_contiguous()
    assert (samples.labels.tolist(), corrupt) == ([0, 9, 3, 3], [])


def test_parquet_of_the_wrong_structure_is_refused(tmp_path: Path) -> None:
    def fails(problem: str, path: Path, count: int = COUNT) -> None:
        with pytest.raises(DataError, match=problem) as caught:
            read_parquet(path, count)
        assert str(path) in str(caught.value)

    path = tmp_path / "train.parquet"
    fails("4 rows, wanted 5", parquet(path, images(), [0, 1, 2, 3]), 5)
    fails("label 10 in row 2", parquet(path, images(), [0, 1, 10, 3]))
    fails("label -1 in row 0", parquet(path, images(), [-1, 1, 1, 3]))
    fails("3 labels, wanted 4", parquet(path, images(), [0, 1, 2, None]))
    fails("columns", parquet(path, images(), [0, 1, 2, 3], "picture"))
    pyarrow.parquet.write_table(pyarrow.table({"img": ["a"] * COUNT, "label": [1] * COUNT}), path)
    fails("no bytes", path)
    cells = [{"bytes": b"", "path": ""}] * COUNT
    pyarrow.parquet.write_table(pyarrow.table({"img": cells, "label": [0.5] * COUNT}), path)
    fails("labels of type double", path)
    fails("unpacks to more than", parquet(path, [bytes(100_000)] * COUNT, [1] * COUNT))
    whole = parquet(path, images(), [0, 1, 2, 3]).read_bytes()
    for damaged in (whole[:-20], b"", whole[:100]):
        path.write_bytes(damaged)
        fails("not a readable parquet file", path)


@pytest.mark.parametrize(
    "bad",
    [b"no image", b"", None, png(noise(32, 32, 3))[:500], png(noise(31, 32, 3)), png(noise(32, 32))],
    ids=["text", "empty", "none", "truncated", "wrong size", "grey"],
)
def test_a_corrupt_image_is_named_or_left_out_and_counted(tmp_path: Path, bad: bytes | None) -> None:
    path = parquet(tmp_path / "train.parquet", [*images(2), bad, *images(1)], [0, 1, 2, 3])
    with pytest.raises(DataError, match=r"train\.parquet has 1 corrupt images of 4, the first in row 2"):
        read_decoded(path, COUNT)
    with pytest.warns(UserWarning, match="1 corrupt images of 4"):
        samples = read_decoded(path, COUNT, skip_corrupt=True)
    assert samples.labels.tolist() == [0, 1, 3]
    assert list(tmp_path.iterdir()) == [path]  # nothing incomplete is kept for the next time


def test_decoded_images_are_kept_and_used_while_the_file_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = parquet(tmp_path / "train.parquet", images(), [0, 1, 2, 3])
    kept = tmp_path / "train.parquet.decoded.safetensors"
    first = read_decoded(path, COUNT)
    assert sorted(tmp_path.iterdir()) == [path, kept]
    with monkeypatch.context() as patch:
        patch.delattr(decoded, "read_parquet")
        second = read_decoded(path, COUNT)
    assert torch.equal(first.images, second.images)
    assert torch.equal(first.labels, second.labels)
    parquet(path, images(), [3, 3, 3, 2])
    assert read_decoded(path, COUNT).labels.tolist() == [3, 3, 3, 2]


def test_damaged_kept_images_are_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = parquet(tmp_path / "train.parquet", images(), [0, 1, 2, 3])
    kept = tmp_path / "train.parquet.decoded.safetensors"
    expected = read_decoded(path, COUNT)
    whole = kept.read_bytes()
    flipped = whole[:-3000] + bytes((whole[-3000] ^ 1,)) + whole[-2999:]
    for damaged in (flipped, whole[:-1], b"", b"\xff" * 100):
        kept.write_bytes(damaged)
        assert torch.equal(read_decoded(path, COUNT).images, expected.images)
        with monkeypatch.context() as patch:
            patch.delattr(decoded, "read_parquet")
            assert torch.equal(read_decoded(path, COUNT).images, expected.images)


def test_images_from_a_read_only_folder_are_kept_in_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, home = tmp_path / "data", tmp_path / "home"
    data.mkdir()
    path = parquet(data / "train.parquet", images(), [0, 1, 2, 3])
    monkeypatch.setattr(Path, "home", lambda: home)
    monkeypatch.setattr(decoded, "writable", lambda folder: folder != data)
    expected = read_decoded(path, COUNT)
    assert list(data.iterdir()) == [path]
    (kept,) = (home / ".cache" / "semifed" / "decoded").rglob("*.safetensors")
    monkeypatch.delattr(decoded, "read_parquet")
    assert torch.equal(read_decoded(path, COUNT).images, expected.images)
    kept.unlink()


def test_a_missing_parquet_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"test\.parquet is missing"):
        read_decoded(tmp_path / "test.parquet", COUNT)
