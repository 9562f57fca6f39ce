"""Tables as data: parquet and CSV, of encoded images or of numeric columns, with labels that may be blank."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.csv
import pyarrow.parquet
import torch
from pyarrow import types
from torch import Tensor

from semifed.data import pictures
from semifed.data.file_settings import FileSettings
from semifed.data.folders import PART_COLUMNS
from semifed.data.raw import LARGEST, UNLABELLED, Raw, as_vectors, check_numbers, number_names
from semifed.errors import DataError

LABELS = ("label", "labels", "class", "target")
IMAGES = ("image", "img")
UNLABELLED_PARTS = ("unlabelled", "unlabeled", "unsupervised")


def read_csv_table(path: Path, settings: FileSettings, skip_corrupt: bool) -> Raw:
    """A CSV of numeric columns and a label column."""
    convert = pyarrow.csv.ConvertOptions(strings_can_be_null=True)
    try:
        table = pyarrow.csv.read_csv(path, convert_options=convert)
    except FileNotFoundError:
        raise DataError(f"{path}: there is no such file") from None
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path}: is not a readable CSV ({' '.join(str(error).split())})") from None
    return from_tables(str(path), {"train": table}, settings, skip_corrupt)


def read_parquet_tables(path: Path, settings: FileSettings, skip_corrupt: bool) -> Raw:
    """One parquet file, or a folder of those whose names begin with train, test and unlabelled."""
    if not path.exists():
        raise DataError(f"{path}: there is no such file or folder")
    if path.is_file():
        return from_tables(str(path), {"train": _parquet(path)}, settings, skip_corrupt)
    parts: dict[str, list[Path]] = {}
    for file in sorted(path.glob("*.parquet")):
        parts.setdefault(file.name.partition("-")[0].removesuffix(".parquet").lower(), []).append(file)
    if not parts:
        raise DataError(f"{path}: has no .parquet file")
    if not {"train", "test"} & set(parts):
        parts = {"train": [file for files in parts.values() for file in files]}
    try:
        tables = {part: pyarrow.concat_tables(map(_parquet, files)) for part, files in parts.items()}
    except pyarrow.ArrowException as error:
        raise DataError(f"{path}: the files have different columns ({' '.join(str(error).split())})") from None
    return from_tables(str(path), tables, settings, skip_corrupt)


def _parquet(path: Path) -> pyarrow.Table:
    try:
        with pyarrow.parquet.ParquetFile(path, page_checksum_verification=True) as file:
            groups = (file.metadata.row_group(index) for index in range(file.num_row_groups))
            size = sum(group.total_byte_size for group in groups)
            if size > LARGEST:
                raise DataError(f"{path}: unpacks to {size:,} bytes, more than {LARGEST:,}")
            return file.read()
    except (pyarrow.ArrowException, OSError, IndexError) as error:
        raise DataError(f"{path}: is not a readable parquet file ({' '.join(str(error).split())})") from None


def from_tables(
    where: str,
    tables: Mapping[str, pyarrow.Table],
    settings: FileSettings,
    skip_corrupt: bool = False,
    names: tuple[str, ...] = (),
) -> Raw:
    """The tables of each part together; parts other than train, test and unlabelled are left out, with a note."""
    unread = [part for part in tables if part not in ("train", "test", *UNLABELLED_PARTS)]
    notes = [f"{where}: not read: {', '.join(unread)}"] if unread else []
    kept = {part: table for part, table in tables.items() if part not in unread}
    if "train" not in kept:
        raise DataError(f"{where}: has the parts {', '.join(tables)}; wanted train")
    label = _label_column(where, kept["train"], settings)
    split = next((name for name in PART_COLUMNS if name in kept["train"].column_names), None)
    labels, classes = _labels(where, kept, label, settings, names)
    test = torch.cat([_tests(table, part, split) for part, table in kept.items()])
    try:
        table = pyarrow.concat_tables(
            [one.drop_columns([name for name in (label, split) if name in one.column_names]) for one in kept.values()]
        )
    except pyarrow.ArrowException as error:
        raise DataError(f"{where}: the parts have different columns ({' '.join(str(error).split())})") from None
    column = _image_column(table)
    if column is None:
        return Raw(_vectors(where, table), labels, test, classes, notes=tuple(notes))
    images, broken = pictures.read(_encoded(where, table, column), settings)
    if broken:
        row, reason = next(iter(broken.items()))
        found = f"{where}: {len(broken)} of {len(labels)} images cannot be used, the first in row {row} ({reason})"
        if not skip_corrupt:
            raise DataError(f"{found}; scenario.skip_corrupt = true leaves them out")
        notes.append(f"{found}; they are left out")
    good = torch.ones(len(labels), dtype=torch.bool)
    good[list(broken)] = False
    return Raw(images[good], labels[good], test[good], classes, notes=tuple(notes))


def _label_column(where: str, table: pyarrow.Table, settings: FileSettings) -> str:
    wanted = dict.fromkeys((settings.label, *LABELS)) if settings.label == "label" else (settings.label,)
    for name in wanted:
        if name in table.column_names:
            return name
    raise DataError(f"{where}: has the columns {', '.join(table.column_names)}; name the label's with files.label")


def _labels(
    where: str, tables: Mapping[str, pyarrow.Table], label: str, settings: FileSettings, names: tuple[str, ...]
) -> tuple[Tensor, tuple[str, ...]]:
    """Labels of all parts in a row; a part of unlabelled samples has none, whatever its column says."""
    said: list[Any] = []
    for part, table in tables.items():
        blank = part in UNLABELLED_PARTS or label not in table.column_names
        said += [None] * len(table) if blank else table.column(label).to_pylist()
    texts = [one for one in said if isinstance(one, str)]
    if texts:
        if len(texts) != sum(one is not None for one in said):
            raise DataError(f"{where}: the column {label} has both text and numbers")
        return number_names(where, [one or None for one in said], settings)
    numbers = [UNLABELLED if one is None else one for one in said]
    try:
        return check_numbers(where, np.array(numbers), settings, names)
    except (ValueError, TypeError, OverflowError):
        raise DataError(f"{where}: the column {label} does not hold labels: text or whole numbers") from None


def _tests(table: pyarrow.Table, part: str, split: str | None) -> Tensor:
    """Which rows are for the test."""
    if part == "train" and split and split in table.column_names:
        return torch.tensor([str(one).lower() == "test" for one in table.column(split).to_pylist()], dtype=torch.bool)
    return torch.full((len(table),), part == "test")


def _image_column(table: pyarrow.Table) -> str | None:
    def encoded(kind: pyarrow.DataType) -> bool:
        inside = types.is_struct(kind) and kind.get_field_index("bytes") >= 0
        return bool(inside or types.is_binary(kind) or types.is_large_binary(kind))

    found = [one.name for one in table.schema if encoded(one.type)]
    return next((name for name in IMAGES if name in found), found[0] if found else None)


def _encoded(where: str, table: pyarrow.Table, column: str) -> list[pictures.Content]:
    """The bytes of each image; a blank is an image that cannot be read."""
    cells = table.column(column).to_pylist()
    contents = [(cell or {}).get("bytes") if isinstance(cell, dict) else cell for cell in cells]
    if not any(contents):
        raise DataError(f"{where}: the column {column} holds no bytes of images, only names at best")
    return [content or b"" for content in contents]


def _vectors(where: str, table: pyarrow.Table) -> Tensor:
    """Numeric columns side by side, or one column of lists."""
    lists = [one.name for one in table.schema if types.is_list(one.type) or types.is_fixed_size_list(one.type)]
    if len(lists) == 1 and table.num_columns == 1:
        rows = table.column(lists[0]).to_pylist()
        if len({len(row or ()) for row in rows}) != 1:
            raise DataError(f"{where}: the lists of column {lists[0]} differ in length")
        return as_vectors(where, np.array(rows, np.float32))
    if not table.num_columns:
        raise DataError(f"{where}: has no column besides the label")
    columns = []
    for one in table.schema:
        if not (types.is_integer(one.type) or types.is_floating(one.type) or types.is_boolean(one.type)):
            raise DataError(f"{where}: column {one.name} holds {one.type}, wanted numbers; encode it or leave it out")
        values = table.column(one.name)
        if values.null_count:
            row = next(number for number, value in enumerate(values.to_pylist()) if value is None)
            raise DataError(f"{where}: column {one.name} has {values.null_count} blanks, the first in row {row}; "
                            "fill them in")  # fmt: skip
        columns.append(values.to_numpy().astype(np.float32))
    return as_vectors(where, np.stack(columns, 1))
