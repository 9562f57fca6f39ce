"""Folders of images: what lies where, which label each file has, and what is odd about it.

    PATH/train/CLASS/*.png   or PATH/CLASS/*.png     labelled
    PATH/unlabelled/**/*.png (also in train/)        without a label
    PATH/test/CLASS/*.png                            the test set, if there is one

or PATH/labels.csv (or PATH itself a CSV) with the columns file and label, where a blank label is none, and perhaps a
column part with train or test. Files are in the order of their names, the same on every machine.
"""

import csv
import io
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from semifed.data.file_settings import FileSettings
from semifed.data.pictures import is_image
from semifed.errors import DataError

LIST = "labels.csv"
FILE_COLUMNS = ("file", "filename", "path", "image")
PART_COLUMNS = ("part", "split")
PARTS = {"train": "train", "training": "train", "": "train", "test": "test"}
RESERVED = ("train", "test", "val", "valid", "validation")
IGNORED = ("Thumbs.db", "desktop.ini", "__MACOSX")

Level = Literal["error", "warning", "note"]


class Entry(NamedTuple):
    """One image file."""

    path: Path
    name: str  # below the folder, with forward slashes
    label: str | None
    part: str


class Problem(NamedTuple):
    """Something odd: an error stops a run, a warning deserves a look."""

    kind: str
    where: str
    what: str
    level: Level = "error"

    def __str__(self) -> str:
        return f"{self.where} {self.what}"


@dataclass
class Listing:
    """All image files of a folder with their labels."""

    root: Path
    entries: list[Entry] = field(default_factory=list)
    classes: tuple[str, ...] = ()
    problems: list[Problem] = field(default_factory=list)

    def note(self, kind: str, where: str, what: str, level: Level = "error") -> None:
        """Write down what is odd."""
        self.problems.append(Problem(kind, where, what, level))


def survey(root: Path, settings: FileSettings) -> Listing:
    """List a folder, or what a CSV names; nothing is opened but the CSV."""
    if not root.exists():
        raise DataError(f"{root}: there is no such folder; it is looked for from {Path.cwd()} and in --data-dir")
    if root.is_file() or (root / LIST).is_file():
        listing = _listed(root if root.is_file() else root / LIST, settings)
    else:
        listing = _walked(root, settings)
    trained = {entry.label for entry in listing.entries if entry.label is not None and entry.part == "train"}
    found = natural(trained | set(listing.classes))
    listing.classes = settings.classes or found
    _check_classes(listing, found)
    return listing


def natural(names: set[str]) -> tuple[str, ...]:
    """Sorted as people do: 2 before 10."""

    def key(name: str) -> list[tuple[bool, int, str]]:
        return [(part.isdigit(), len(part) * part.isdigit(), part) for part in re.split(r"(\d+)", name)]

    return tuple(sorted(names, key=key))


def _check_classes(listing: Listing, found: tuple[str, ...]) -> None:
    known = set(listing.classes)
    for entry in listing.entries:
        if entry.label is not None and entry.label not in known:
            what = f"has the label {entry.label!r}, which is not one of the classes: {', '.join(listing.classes)[:200]}"
            listing.note("unknown label", entry.name, what)
    plain: dict[str, str] = {}
    for name in found:
        same = plain.setdefault(name.strip().casefold(), name)
        if same != name:
            listing.note("similar classes", repr(name), f"and {same!r} are two classes that differ in nothing but case "
                         "or blanks", "warning")  # fmt: skip


def _walked(root: Path, settings: FileSettings) -> Listing:
    """Class folders."""
    listing = Listing(root)
    base = root / "train" if (root / "train").is_dir() else root
    apart = {*RESERVED, *settings.unlabelled}
    classes = [folder for folder in _folders(base) if folder.name not in apart]
    listing.classes = tuple(folder.name for folder in classes)
    if not listing.classes:
        listing.note(
            "no classes",
            str(root),
            f"has no class folders: put the images of a class into {base.name}/CLASS/, or write a {LIST} of file,label",
        )
    for folder in classes:
        _add(listing, folder, folder.name, "train")
    for place in dict.fromkeys((root, base)):
        for name in settings.unlabelled:
            _add(listing, place / name, None, "train")
        _note_loose(listing, place)
    if (root / "test").is_dir():
        for folder in _folders(root / "test"):
            _add(listing, folder, folder.name, "test")
        _note_loose(listing, root / "test")
    for name in RESERVED[2:]:
        if (root / name).is_dir():
            listing.note("unused folder", f"{name}/", "is not read: scenario.validation sets images apart", "warning")
    return listing


def _add(listing: Listing, folder: Path, label: str | None, part: str) -> None:
    """The images below a folder."""
    before = len(listing.entries)
    for path in _files(folder):
        name = _name(listing.root, path)
        if is_image(path):
            listing.entries.append(Entry(path, name, label, part))
        else:
            listing.note("not an image", name, "is not an image file and is not read", "warning")
    if label is not None and len(listing.entries) == before:
        listing.note("empty class", f"{_name(listing.root, folder)}/", "is a class folder without an image", "warning")


def _note_loose(listing: Listing, folder: Path) -> None:
    for path in sorted(folder.iterdir()):
        if path.is_file() and is_image(path):
            what = "lies beside the class folders and is not read; move it into a class or into unlabelled/"
            listing.note("loose image", _name(listing.root, path), what, "warning")


def _folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir() and not _hidden(path.name))


def _files(folder: Path) -> Iterator[Path]:
    """All files below, in the order of their names."""
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not _hidden(name))
        yield from (Path(place, name) for name in sorted(names) if not _hidden(name))


def _hidden(name: str) -> bool:
    return name.startswith(".") or name in IGNORED


def _name(root: Path, path: Path) -> str:
    return path.relative_to(root).as_posix()


def _listed(path: Path, settings: FileSettings) -> Listing:
    """What a CSV of file,label names."""
    listing = Listing(path.parent)
    columns, rows = read_csv(path)
    places = {name.strip().lower(): number for number, name in enumerate(columns)}
    file = next((places[name] for name in FILE_COLUMNS if name in places), None)
    label = next((places[name] for name in (settings.label.lower(), "label", "class") if name in places), None)
    if file is None or label is None:
        raise DataError(f"{path}: has the columns {', '.join(columns)}; wanted file and {settings.label}")
    part = next((places[name] for name in PART_COLUMNS if name in places), None)
    seen: dict[str, tuple[int, str]] = {}
    for number, row in rows:
        where = f"{path.name} row {number}"
        if len(row) != len(columns):
            listing.note("wrong row", where, f"has {len(row)} fields, the first row {len(columns)}")
            continue
        name, said = row[file].strip().replace("\\", "/"), row[label].strip()
        given = row[part].strip().lower() if part is not None else ""
        if given not in PARTS:
            listing.note("wrong row", where, f"says {given!r}, wanted train or test")
        elif not _inside(name):
            listing.note("wrong row", where, f"names {name!r}, which does not lie below the folder of the CSV")
        elif name in seen:
            _note_again(listing, where, name, said, seen[name])
        elif not (path.parent / name).is_file():
            listing.note("missing file", where, f"names {name!r}, and there is no such file")
        else:
            listing.entries.append(Entry(path.parent / name, name, said or None, PARTS[given]))
        seen.setdefault(name, (number, said))
    others = sum(is_image(one) and _name(path.parent, one) not in seen for one in _files(path.parent))
    if others:
        listing.note("not listed", f"{others} images", f"are not in {path.name} and are not read", "warning")
    listing.entries.sort(key=lambda entry: entry.name)
    return listing


def _note_again(listing: Listing, where: str, name: str, said: str, before: tuple[int, str]) -> None:
    number, first = before
    if said == first:
        listing.note("duplicate row", where, f"names {name!r} again, as row {number} does", "warning")
    else:
        listing.note("contradiction", where, f"says that {name!r} is {said!r}, row {number} says {first!r}")


def _inside(name: str) -> bool:
    """Whether a name stays below the folder: not absolute, no drive, no way up."""
    return bool(name) and not name.startswith("/") and ":" not in name and ".." not in name.split("/")


def read_csv(path: Path) -> tuple[list[str], Iterator[tuple[int, list[str]]]]:
    """The first row and the others with their line numbers; commas, semicolons or tabs, whichever the first has."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise DataError(f"{path}: is not UTF-8 text; save it as UTF-8") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None
    first = text.partition("\n")[0]
    mark = max(",;\t", key=first.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=mark)
    try:
        columns = next(reader)
    except (StopIteration, csv.Error):
        raise DataError(f"{path}: has no first row that names the columns") from None

    def rows() -> Iterator[tuple[int, list[str]]]:
        try:
            for row in reader:
                if row:
                    yield reader.line_num, row
        except csv.Error as error:
            raise DataError(f"{path}: line {reader.line_num} is not CSV: {error}") from None

    return columns, rows()
