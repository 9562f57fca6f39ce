"""Fuzz what reads bytes from outside: `python fuzz/parsers.py payload --seconds 600`, or `make fuzz` for all.

Each target hands bytes to one parser, which must read them or refuse them with an error of ours.
With atheris (extra `fuzz`) inputs are led by coverage; `--replay` reads the corpus and spoilt copies of it without.
"""

import argparse
import importlib
import os
import random
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import torch

LED = __name__ == "__main__" and "--replay" not in sys.argv and "seeds" not in sys.argv
with importlib.import_module("atheris").instrument_imports(include=["semifed", "tomllib"]) if LED else nullcontext():
    from semifed.data import readers, split_file
    from semifed.engine.wire import read_head
    from semifed.errors import SemifedError
    from semifed.experiment import Experiment
    from semifed.payload import Partial, nbytes, pack, unpack
    from semifed.settings import read_toml

HERE = Path(__file__).parent
CORPUS = HERE / "corpus"
LIMIT = 2**24
FILE = Path(tempfile.gettempdir()) / f"semifed-fuzz-{os.getpid()}"


def payload(data: bytes) -> None:
    """A message; what can be read must say the same when it is packed again."""
    tree = unpack(data, limit=LIMIT)
    again = unpack(pack(tree), limit=2**26)
    assert nbytes(again) == nbytes(tree)


def head(data: bytes) -> None:
    """The head of a letter between server and site."""
    read_head(data.decode("utf-8", "replace"))


def _file(read: Callable[[Path], object]) -> Callable[[bytes], None]:
    def run(data: bytes) -> None:
        FILE.write_bytes(data)
        read(FILE)

    return run


TARGETS: dict[str, Callable[[bytes], None]] = {
    "payload": payload,
    "head": head,
    "idx": _file(lambda path: readers.read_idx(path, (2, 3, 3))),
    "mat": _file(lambda path: readers.read_mat(path, 2)),
    "parquet": _file(lambda path: readers.read_parquet(path, 2)),
    "cifar": _file(lambda path: readers.read_cifar(path, {"data_batch_1.bin": ""}, 1)),
    "split": _file(split_file.read),
    "toml": _file(lambda path: Experiment.of(read_toml(path))),
}


def one(name: str, data: bytes) -> None:
    """Hand bytes to a parser, which may refuse them in our own words only."""
    try:
        TARGETS[name](data)
    except SemifedError as error:
        if not str(error).strip() or "\n" in str(error).strip():
            raise AssertionError("a refusal is one line") from error


def replay(name: str, rounds: int, seed: int = 0) -> int:
    """The corpus of a parser, and copies of it with bytes changed, cut out, doubled or joined; how many were read."""
    draw, files = random.Random(seed), sorted((CORPUS / name).iterdir())
    seeds = [path.read_bytes() for path in files]
    count = 0
    for data in seeds:
        one(name, data)
        for _ in range(rounds):
            one(name, spoilt(data, seeds, draw))
            count += 1
    return count + len(seeds)


def spoilt(data: bytes, others: list[bytes], draw: random.Random) -> bytes:
    """A copy with a few random changes."""
    made = bytearray(data)
    for _ in range(draw.randint(1, 4)):
        place, kind = draw.randrange(len(made) + 1), draw.randrange(5)
        if kind == 0 and made:
            made[place % len(made)] = draw.randrange(256)
        elif kind == 1:
            del made[place : place + draw.randint(1, 16)]
        elif kind == 2:
            made[place:place] = made[place : place + draw.randint(1, 16)]
        elif kind == 3:
            made[place:place] = draw.choice([b"\xff" * 8, b"\x00" * 8, b"-1", b"1e999", b"[[", b'"', b"9" * 20])
        else:
            other = draw.choice(others)
            made[place:] = other[draw.randrange(len(other) + 1) :]
    return bytes(made)


def seeds() -> dict[str, list[bytes]]:
    """Small inputs that every parser can read, from which the corpus is made."""
    import gzip
    import io
    import tarfile

    import numpy as np
    import pyarrow
    import pyarrow.parquet
    import scipy.io
    from PIL import Image

    partial = Partial(
        {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(2)},
        {"a": torch.tensor([[True, False, True], [False, False, True]]), "b": torch.tensor(False)},
    )
    trees = [
        {"net": {"w": torch.ones(2, 2), "n": torch.tensor(3)}},
        {"psi": partial, "e": {}},
        {"x": torch.zeros(0, 2)},
    ]
    idx = bytes((0, 0, 8, 3)) + b"".join(size.to_bytes(4, "big") for size in (2, 3, 3)) + bytes(range(18))
    mat = io.BytesIO()
    scipy.io.savemat(
        mat, {"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.array([[1], [10]], np.uint8)}, do_compression=True
    )
    picture = io.BytesIO()
    Image.new("RGB", (32, 32), (9, 8, 7)).save(picture, "PNG")
    rows = [{"bytes": picture.getvalue(), "path": None}] * 2
    table = pyarrow.table({"img": rows, "label": [0, 1]})
    parquet = io.BytesIO()
    pyarrow.parquet.write_table(table, parquet)
    batch, archive = bytes([3]) + bytes(3072), io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        info = tarfile.TarInfo("cifar-10-batches-bin/data_batch_1.bin")
        info.size = len(batch)
        tar.addfile(info, io.BytesIO(batch))
    split_file.write(FILE, {"test": np.arange(3), "clients": np.arange(4)}, {"format": "1"})
    toml = Experiment().replace("train.rounds=3", "attack.kind=nans", "attack.clients=[1]").toml().encode()
    return {
        "payload": [pack(tree) for tree in trees],
        "head": [b'{"kind":"trained","run":"a","round":1,"examples":3,"terms":{"x":1.0},"notes":{}}', b"{}"],
        "idx": [idx, gzip.compress(idx, mtime=0)],
        "mat": [mat.getvalue()],
        "parquet": [parquet.getvalue()],
        "cifar": [archive.getvalue()],
        "split": [FILE.read_bytes()],
        "toml": [
            toml,
            b'method = "fedsiam-d"\n[train]\nrounds = 2\n',
            b'\xef\xbb\xbfmethod = { name = "fedprox", mu = 0.1 }\r\n',
        ],
    }


def main() -> None:
    known = argparse.ArgumentParser(description=__doc__)
    known.add_argument("target", choices=[*TARGETS, "seeds"])
    known.add_argument("--seconds", type=int, default=600)
    known.add_argument("--replay", type=int, default=0, help="so many spoilt copies of each file of the corpus instead")
    chosen = known.parse_args()
    if chosen.target == "seeds":
        for name, found in seeds().items():
            (CORPUS / name).mkdir(parents=True, exist_ok=True)
            for number, data in enumerate(found):
                (CORPUS / name / f"{number}").write_bytes(data)
        return
    torch.set_num_threads(1)
    started = time.monotonic()
    if chosen.replay:
        count = replay(chosen.target, chosen.replay)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"{chosen.target}: {count:,} inputs in {time.monotonic() - started:.0f} s, peak {peak:.0f} MB")
        return
    atheris = importlib.import_module("atheris")
    flags = [f"-max_total_time={chosen.seconds}", "-rss_limit_mb=2000", "-timeout=30", "-max_len=20000"]
    flags += [f"-artifact_prefix={HERE}/found-{chosen.target}-", "-print_final_stats=1"]
    with tempfile.TemporaryDirectory() as grown:
        atheris.Setup([sys.argv[0], *flags, grown, str(CORPUS / chosen.target)], lambda data: one(chosen.target, data))
        atheris.Fuzz()


if __name__ == "__main__":
    main()
