"""What is odd about the files of a folder: those that cannot be read, sizes and colours that differ."""

import dataclasses
from collections import Counter
from typing import Any, NamedTuple

import torch

from semifed.data import pictures
from semifed.data.file_settings import FileSettings
from semifed.data.folders import Listing, Problem
from semifed.data.pictures import Look
from semifed.data.raw import Raw, number_names

ANY_SIZE = 32  # to which images of different sizes are brought, only to compare them
SEE_THROUGH = ("LA", "La", "PA", "RGBA", "RGBa")


class Seen(NamedTuple):
    """A folder after a look at every file."""

    raw: Raw | None  # what can be read; None if nothing can
    problems: list[Problem]
    facts: dict[str, Any]


def look_at_files(listing: Listing, settings: FileSettings) -> Seen:
    """Open and decode every file, and go on after each that fails."""
    problems = list(listing.problems)
    known = set(listing.classes)
    entries = [entry for entry in listing.entries if entry.label is None or entry.label in known]
    looks = pictures.look([entry.path for entry in entries], settings)
    good = [one for one in looks if isinstance(one, Look)]
    facts = {
        "sizes": _counted(f"{one.width}x{one.height}" for one in good),
        "modes": _counted(one.mode for one in good),
    }
    problems += _sizes([entry.name for entry in entries], looks, settings)
    problems += _modes([entry.name for entry in entries], looks, settings)
    if not good:
        return Seen(None, problems, facts)
    if not settings.size and len(facts["sizes"]) > 1:
        settings = dataclasses.replace(settings, size=ANY_SIZE)
    images, broken = pictures.read([entry.path for entry in entries], settings)
    problems += [
        Problem("too large" if reason.startswith("claims") or "decompression bomb" in reason else "corrupt file",
                entries[place].name, reason)
        for place, reason in broken.items()
    ]  # fmt: skip
    kept = [place for place in range(len(entries)) if place not in broken]
    named = dataclasses.replace(settings, classes=listing.classes)
    labels, classes = number_names(str(listing.root), [entries[place].label for place in kept], named)
    test = torch.tensor([entries[place].part == "test" for place in kept], dtype=torch.bool)
    names = tuple(entries[place].name for place in kept)
    return Seen(Raw(images[kept], labels, test, classes, names) if kept else None, problems, facts)


def _counted(values: Any) -> dict[str, int]:
    return dict(Counter(values).most_common(10))


def _sizes(names: list[str], looks: list[Look | pictures.Unreadable], settings: FileSettings) -> list[Problem]:
    """Sizes unlike that of most, where nothing makes them the same."""
    sizes = Counter((one.width, one.height) for one in looks if isinstance(one, Look))
    if len(sizes) < 2 or settings.size:
        return []
    usual = sizes.most_common(1)[0][0]
    return [
        Problem("mixed sizes", name, f"is {one.width}x{one.height}, most are {usual[0]}x{usual[1]}: set files.size")
        for name, one in zip(names, looks, strict=True)
        if isinstance(one, Look) and (one.width, one.height) != usual
    ]


def _modes(names: list[str], looks: list[Look | pictures.Unreadable], settings: FileSettings) -> list[Problem]:
    """Grey among colour, transparency, and colours that are converted."""
    found = []
    readable = [(name, one) for name, one in zip(names, looks, strict=True) if isinstance(one, Look)]
    grey = sum(one.grey for _, one in readable)
    rare = grey <= len(readable) / 2
    mixed = 0 < grey < len(readable) and settings.colour == "auto"
    for name, one in readable:
        if mixed and one.grey == rare:
            which = "grey among colour images" if one.grey else "a colour image among grey ones"
            found.append(
                Problem("mixed channels", name, f"is {which}; all become colour, or set files.colour = grey", "warning")
            )
        if one.mode in SEE_THROUGH or one.mode in ("CMYK", "YCbCr", "LAB", "HSV", "F"):
            what = f"has the mode {one.mode}: transparency is dropped and colours are converted"
            found.append(Problem("odd mode", name, what, "warning"))
    return found
