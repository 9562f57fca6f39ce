"""Data sets of Hugging Face, by name or from the folder that `save_to_disk` made; needs the extra `hf`."""

import importlib
from pathlib import Path
from typing import Any

from semifed.data.file_settings import FileSettings
from semifed.data.raw import Raw
from semifed.data.tables import LABELS, from_tables
from semifed.errors import DataError


def read_hub(name: str, settings: FileSettings, skip_corrupt: bool) -> Raw:
    """All parts of a data set as tables; images stay encoded, so that they are decoded as all others are."""
    try:
        library = importlib.import_module("datasets")
    except ImportError:
        raise DataError(
            "data: hf:NAME needs Hugging Face's datasets; install it with: pip install 'semifed[hf]'"
        ) from None
    library.disable_progress_bars()
    try:
        found = library.load_from_disk(name) if Path(name).is_dir() else library.load_dataset(name)
        parts = dict(found) if hasattr(found, "keys") else {"train": found}
        tables = {part: one.with_format("arrow")[:] for part, one in parts.items()}
    except Exception as error:  # the library may fail in any way, most of all without a network
        reason = " ".join(str(error).split())[:300]
        raise DataError(f"hf:{name}: cannot be loaded ({type(error).__name__}: {reason})") from None
    return from_tables(f"hf:{name}", tables, settings, skip_corrupt, _class_names(parts, settings))


def _class_names(parts: dict[str, Any], settings: FileSettings) -> tuple[str, ...]:
    """The names that the data set itself has for its labels."""
    features = next(iter(parts.values())).features
    for column in (settings.label, *LABELS):
        names = getattr(features.get(column), "names", None)
        if names:
            return tuple(names)
    return ()
