"""The [files] table of an experiment: how data of a user's own are read."""

import math
import re
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import ClassVar, Literal

from semifed.errors import SettingError
from semifed.settings import Settings, option

KINDS = {
    "folder": "images in class folders (train/, test/, unlabelled/), or named by a CSV of file,label with blanks",
    "npz": "arrays of images or vectors with labels; -1 is no label",
    "parquet": "a file or folder of encoded images or numeric columns, with a label column",
    "csv": "numeric columns with a label column; a blank is no label",
    "hf": "a Hugging Face data set by name, or a folder it was saved to (pip install 'semifed[hf]')",
}
"""What may stand before the colon of ``data = "folder:PATH"``."""


@dataclass(frozen=True)
class FileSettings(Settings):
    """How files of your own are read; goes with data = "folder:PATH", "npz:PATH" and the like."""

    table: ClassVar[str] = "files"

    size: int | None = option(
        None, "images are resized to this height and width; as they are if not given", least=1, most=4096
    )
    fit: Literal["crop", "stretch"] = option(
        "crop", "how an image of another shape becomes square: crop cuts the longer side, stretch keeps all of it"
    )
    colour: Literal["auto", "grey", "colour"] = option("auto", "one channel or three; auto: grey if every image is")
    test: float = option(
        0.2, "where there is no test part: the share of each class's labelled samples that becomes it", least=0, below=1
    )
    classes: tuple[str, ...] = option((), "the classes in order; those that are found, sorted by name, if not given")
    unlabelled: tuple[str, ...] = option(("unlabelled", "unlabeled"), "folders of images that have no label")
    label: str = option("label", "the column of the label, in tables")
    flips: bool = option(True, "whether a mirrored image still shows the same class; not so for digits or text")
    mean: tuple[float, ...] = option(
        (), "per channel, of pixels in 0..1; 0.5 if not given (columns of a table: measured on the training set)"
    )
    std: tuple[float, ...] = option((), "as mean")
    most_pixels: int = option(50_000_000, "an image that claims to have more is not opened", least=1, most=89_000_000)
    cache: bool = option(False, "keep a copy of the decoded images under ~/.cache/semifed, to load faster next time")

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.mean) != len(self.std):
            raise SettingError(f"files.std: {len(self.std)} values for {len(self.mean)} of files.mean; give both")
        if not all(math.isfinite(value) for value in self.mean + self.std) or min(self.std, default=1) <= 0:
            raise SettingError(f"files.std: mean {self.mean} and std {self.std} must be finite, and std above 0")
        paths = [name for name in self.unlabelled if name in ("", "..") or PurePath(name).name != name or "\\" in name]
        if paths:
            raise SettingError(f"files.unlabelled: {paths[0]!r} is not the name of a folder beside the classes")
        twice = [name for number, name in enumerate(self.classes) if name in self.classes[:number]]
        if twice:
            raise SettingError(f"files.classes: {twice[0]!r} is named twice")


def kind_of(data: str) -> str:
    """``folder`` of ``folder:PATH``; empty for the name of a known data set."""
    kind, colon, place = data.partition(":")
    return kind if colon and place.strip() and kind in KINDS else ""


def short_name(data: str) -> str:
    """A name for folders and titles: ``photos`` of ``folder:/data/photos``."""
    kind = kind_of(data)
    stem = PurePath(data.partition(":")[2].strip()).stem if kind else data
    return re.sub(r"[^\w.+-]", "-", stem) or kind


def guess(place: str, data_dir: Path | None = None) -> str:
    """``folder:PATH`` and the like for a bare path that is there; what is said in full, and names, stay."""
    path = next((one for one in (Path(place), (data_dir or Path()) / place) if one.exists()), None)
    if kind_of(place) or path is None:
        return place
    if path.is_file() and path.suffix in (".npz", ".parquet"):
        return f"{path.suffix[1:]}:{place}"
    return f"folder:{place}"
