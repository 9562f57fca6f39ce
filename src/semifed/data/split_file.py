"""A split on disk: named int64 arrays and a few facts in one safetensors file, written whole or not at all."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from semifed.data.partitions import Indices
from semifed.errors import DataError
from semifed.writing import write_whole

_KIND = "semifed-scenario"
_VERSION = "1"


def write(path: Path, arrays: Mapping[str, Indices], facts: Mapping[str, str]) -> None:
    """Write so that a crash leaves the old file or the new one."""
    try:
        write_whole(path, save(dict(arrays), {"kind": _KIND, "version": _VERSION, **facts}))
    except OSError as error:
        raise DataError(f"{path}: the split cannot be written ({error.strerror or error})") from error


def read(path: Path) -> tuple[dict[str, Indices], dict[str, str]]:
    """The arrays and facts of a split file; anything else is refused with the name of the file."""
    try:
        with safe_open(path, framework="np") as file:
            facts = dict(file.metadata() or {})
            names = file.keys() if facts.get("kind") == _KIND else []  # other files may hold types NumPy lacks
            arrays = {name: file.get_tensor(name) for name in names}
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such split file; make one with `semifed split make`") from error
    except OSError as error:
        raise DataError(f"{path}: the split file cannot be read ({error.strerror or error})") from error
    except SafetensorError as error:
        raise DataError(f"{path}: not a split file, or damaged; make it anew with `semifed split make`") from error
    if facts.get("kind") != _KIND:
        raise DataError(f"{path}: a safetensors file, but not a split of Semifed")
    if facts.get("version") != _VERSION:
        raise DataError(f"{path}: split format {facts.get('version')!r}, but this Semifed reads {_VERSION!r}")
    for name, array in arrays.items():
        if array.dtype != np.int64 or array.ndim != 1:
            raise DataError(f"{path}: {name} is not a list of whole numbers; the file is damaged")
    return arrays, facts
