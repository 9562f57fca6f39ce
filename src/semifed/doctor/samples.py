"""What is odd about the samples themselves: copies, contradictions, leaks into the test, blanks, classes too small."""

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from semifed.data.folders import Level, Problem
from semifed.data.raw import Raw
from semifed.data.sources import fingerprints
from semifed.doctor.near import near_copies

TINY = 0.1  # a class with fewer than this share of the labels that an even deal would give it


def look_at_samples(raw: Raw, one_of_many: bool = False) -> Iterator[Problem]:
    """All problems of the content; one site of many may lack classes."""
    yield from _copies(raw)
    if raw.images.dim() == 4:
        yield from _near_copies(raw)
        yield from _blank_images(raw)
    else:
        yield from _dead_columns(raw)
    yield from _classes(raw, one_of_many)


def _name(raw: Raw, place: int) -> str:
    return raw.names[place] if raw.names else f"sample {place}"


def _copies(raw: Raw) -> Iterator[Problem]:
    """The very same content more than once: in training and test, under two labels, or just twice."""
    hashes = fingerprints(raw.images).numpy()
    order = np.argsort(hashes, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(hashes[order])) + 1)
    for group in groups:
        if len(group) > 1:
            yield from _pairs(raw, group, "is the same as")


def _pairs(raw: Raw, group: NDArray[np.int64], words: str) -> Iterator[Problem]:
    """What it means that these samples are alike, told of each but the first."""
    first, rest = int(group[0]), [int(one) for one in group[1:]]
    exact = words == "is the same as"
    for place in rest:
        what = f"{words} {_name(raw, first)}"
        one, two = int(raw.labels[first]), int(raw.labels[place])
        if bool(raw.test[first]) != bool(raw.test[place]):
            kind, level = "leak into the test", "error"
            what += ", one in the training and one in the test part"
        elif one != two and one >= 0 and two >= 0 and exact:
            kind, level = "contradiction", "error"
            what += f", one labelled {raw.classes[one]!r} and one {raw.classes[two]!r}"
        else:
            kind, level = ("duplicate" if exact else "near duplicate"), "warning"
        if not exact and level == "error":
            kind, level = "near leak into the test", "warning"
        yield Problem(kind, _name(raw, place), what, "error" if level == "error" else "warning")


def _near_copies(raw: Raw) -> Iterator[Problem]:
    for first, second in near_copies(raw.images):
        yield from _pairs(raw, np.array([first, second]), "looks nearly the same as")


def _blank_images(raw: Raw) -> Iterator[Problem]:
    flat = raw.images.flatten(2)
    blank = (flat.amax(2) == flat.amin(2)).all(1)
    for place in blank.nonzero()[:, 0].tolist():
        yield Problem("constant image", _name(raw, place), "has the same value everywhere", "warning")


def _dead_columns(raw: Raw) -> Iterator[Problem]:
    train = raw.images[~raw.test]
    for column in (train == train[0]).all(0).nonzero()[:, 0].tolist():
        yield Problem("constant column", f"column {column}", "has the same value in every training sample", "warning")


def _classes(raw: Raw, one_of_many: bool) -> Iterator[Problem]:
    """Classes without a label, or with so few that a fair share of them would be ten times as many."""
    own = raw.labels[~raw.test & (raw.labels >= 0)]
    counts = torch.bincount(own, minlength=len(raw.classes)).tolist()
    fair = sum(counts) / max(len(counts), 1)
    for name, count in zip(raw.classes, counts, strict=True):
        if not count:
            told = "is not here, so other sites must have it" if one_of_many else "cannot be learned"
            level: Level = "warning" if one_of_many else "error"
            yield Problem("class without a label", repr(name), f"has no labelled training sample: it {told}", level)
        elif count == 1 < fair or count < TINY * fair:
            what = f"has {count} labelled training samples, where an even share would be {fair:.0f}"
            yield Problem("tiny class", repr(name), what, "warning")
    tested = torch.bincount(raw.labels[raw.test], minlength=len(raw.classes)).tolist() if bool(raw.test.any()) else []
    for name, count in zip(raw.classes, tested, strict=False):
        if not count:
            what = "has no test sample, so nothing will be known of how well it is recognised"
            yield Problem("class without a test", repr(name), what, "warning")
