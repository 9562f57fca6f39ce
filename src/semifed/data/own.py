"""A user's own data, from ``folder:PATH`` to a Dataset: read, put in order, and given a test part if it has none."""

import dataclasses
import hashlib
from pathlib import Path

import torch
from torch import Tensor

from semifed import keys
from semifed.data import pictures, sources
from semifed.data.arrays import read_npz
from semifed.data.decoded import keep, recall
from semifed.data.download import cache_folder
from semifed.data.file_settings import FileSettings, kind_of, short_name
from semifed.data.folders import Listing, survey
from semifed.data.raw import Raw, number_names
from semifed.data.readers import Samples
from semifed.data.sources import Dataset, fingerprints
from semifed.errors import DataError, SettingError

MAY_SKIP = ("missing file", "wrong row")
HINT = "scenario.skip_corrupt = true leaves such files out, and `semifed doctor` lists all"


def load(
    data: str, data_dir: Path | None = None, files: FileSettings | None = None, *, skip_corrupt: bool = False
) -> Dataset:
    """The data of an experiment: a known data set by name, or the user's own as ``kind:place``."""
    if not kind_of(data):
        return sources.load(data, data_dir, skip_corrupt=skip_corrupt)
    settings = files or FileSettings()
    return as_dataset(short_name(data), read(data, data_dir, settings, skip_corrupt=skip_corrupt), settings)


def read(data: str, data_dir: Path | None, settings: FileSettings, *, skip_corrupt: bool = False) -> Raw:
    """What ``kind:place`` holds, as it was found."""
    kind, name = kind_of(data), data.partition(":")[2].strip()
    place = find(name, data_dir)
    match kind:
        case "folder":
            return read_folder(survey(place, settings), settings, skip_corrupt)
        case "npz":
            return read_npz(place, settings)

    from semifed.data.hub import read_hub  # noqa: PLC0415  these import pyarrow, which takes a while
    from semifed.data.tables import read_csv_table, read_parquet_tables  # noqa: PLC0415

    match kind:
        case "parquet":
            return read_parquet_tables(place, settings, skip_corrupt)
        case "csv":
            return read_csv_table(place, settings, skip_corrupt)
        case _:
            return read_hub(str(place) if place.is_dir() else name, settings, skip_corrupt)


def find(name: str, data_dir: Path | None) -> Path:
    """A place as it is named, from the current folder; else below the data folder."""
    place = Path(name).expanduser()
    below = data_dir / place if data_dir else place
    return below if below.exists() and not place.exists() else place


def read_folder(listing: Listing, settings: FileSettings, skip_corrupt: bool = False) -> Raw:
    """The images of a folder; what is wrong with it stops here, or is left out and counted."""
    faults = [one for one in listing.problems if one.level == "error"]
    hard = [one for one in faults if not (skip_corrupt and one.kind in MAY_SKIP)]
    if hard:
        more = f" (and {len(hard) - 1} more)" if len(hard) > 1 else ""
        raise DataError(f"{listing.root}: {hard[0]}{more}; `semifed doctor folder:{listing.root}` lists all")
    if not listing.entries:
        raise DataError(f"{listing.root}: has no image; wanted files that end in {', '.join(pictures.ENDINGS)}")
    notes = [f"{listing.root}: {len(faults)} rows are left out, the first: {faults[0]}"] if faults else []
    named = dataclasses.replace(settings, classes=listing.classes)  # with those of empty folders
    labels, classes = number_names(str(listing.root), [entry.label for entry in listing.entries], named)
    images, broken = _read_images(listing, labels, settings)
    entries = [entry for place, entry in enumerate(listing.entries) if place not in broken]
    if broken:
        first, reason = next(iter(broken.items()))
        path, count = listing.entries[first].path, len(broken)
        if not skip_corrupt:
            more = f" (and {count - 1} more)" if count > 1 else ""
            raise DataError(f"{path} {reason}{more}; {HINT}")
        notes.append(f"{count} of {len(labels)} images are left out, the first: {path} {reason}")
        good = torch.ones(len(labels), dtype=torch.bool)
        good[list(broken)] = False
        images, labels = images[good], labels[good]
    test = torch.tensor([entry.part == "test" for entry in entries], dtype=torch.bool)
    unread: dict[str, int] = {}
    for one in listing.problems:
        if one.kind in ("loose image", "unused folder", "not listed"):
            unread[one.kind] = unread.get(one.kind, 0) + 1
            if unread[one.kind] == 1:
                notes.append(str(one))
    return Raw(images, labels, test, classes, tuple(entry.name for entry in entries), tuple(notes))


def _read_images(listing: Listing, labels: Tensor, settings: FileSettings) -> tuple[Tensor, dict[int, str]]:
    """Decoded now, or with `files.cache` as they were decoded before."""
    paths = [entry.path for entry in listing.entries]
    if not settings.cache:
        return pictures.read(paths, settings)
    state = hashlib.sha256(f"1 {settings.size} {settings.fit} {settings.colour} {settings.most_pixels}".encode())
    for entry in listing.entries:
        status = entry.path.stat()
        state.update(f"\n{entry.name}\t{entry.label}\t{status.st_size}\t{status.st_mtime_ns}".encode())
    own = hashlib.sha256(str(listing.root.resolve()).encode()).hexdigest()[:16]
    place = cache_folder() / "decoded" / own / "folder.safetensors"
    if (kept := recall(place, state.hexdigest())) is not None:
        return kept.images, {}
    images, broken = pictures.read(paths, settings)
    if not broken:
        keep(place, state.hexdigest(), Samples(images, labels))
    return images, broken


def as_dataset(name: str, raw: Raw, settings: FileSettings) -> Dataset:
    """Training samples first, then the test, which is made here where there is none."""
    test, notes = raw.test, list(raw.notes)
    kept = torch.ones(len(test), dtype=torch.bool)
    if not bool(test.any()) and settings.test and bool((raw.labels >= 0).any()):
        test, kept = _draw_test(raw, settings.test)
        notes.append(_about_test(raw, test, settings.test))
        if copies := int((~kept).sum()):
            notes.append(f"{copies} further copies of test samples are left out of the training set")
    blank = (test & (raw.labels < 0)).nonzero()
    if len(blank):
        first = int(blank[0])
        which = raw.names[first] if raw.names else f"sample {first}"
        raise DataError(
            f"{name}: {which} is in the test set and has no label: label it, or put it among the unlabelled"
        )
    order = torch.cat([(~test & kept).nonzero()[:, 0], (test & kept).nonzero()[:, 0]])
    images, train = raw.images[order], int((~test & kept).sum())
    if not train:
        raise DataError(f"{name}: no sample is left to train on")
    mean, std = _scale(images[:train], settings)
    names = tuple(raw.names[place] for place in order.tolist()) if raw.names else ()
    return Dataset(
        name, images, raw.labels[order], train, raw.classes, mean, std, settings.flips, names=names, notes=tuple(notes)
    )


def _draw_test(raw: Raw, share: float) -> tuple[Tensor, Tensor]:
    """Which samples are for the test, by a hash of their content, and which are no further copy of one of those.

    The same images give the same test set on every machine, in any order and under any name.
    """
    hashes = fingerprints(raw.images)
    draws = keys.uniform(keys.fold(hashes, torch.tensor(keys.key("test part"))), 1)[:, 0]
    test = torch.zeros(len(hashes), dtype=torch.bool)
    for label in range(len(raw.classes)):
        own = (raw.labels == label).nonzero()[:, 0]
        wanted = min(max(1, round(share * len(own))), len(own) - 1)
        if wanted > 0:
            edge = draws[own].sort().values[wanted - 1]
            test[own[draws[own] <= edge]] = True
    copies = torch.isin(hashes, hashes[test]) & ~test
    return test, ~copies


def _about_test(raw: Raw, test: Tensor, share: float) -> str:
    count, labelled = int(test.sum()), int((raw.labels >= 0).sum())
    rough = f"; with so few an accuracy is good to about ±{100 / count**0.5:.0f} points" if 0 < count < 1000 else ""
    return (
        f"the data have no test part: {count} of {labelled} labelled samples, about {share:.0%} of each class by a "
        f"hash of their content, are set apart as one{rough}"
    )


def _scale(samples: Tensor, settings: FileSettings) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation by which samples are normalised."""
    channels = samples.shape[1]
    if settings.mean:
        if len(settings.mean) != channels:
            raise SettingError(f"files.mean: has {len(settings.mean)} values, but the data have {channels} channels")
        return settings.mean, settings.std
    if samples.dim() == 4:
        return (0.5,) * channels, (0.5,) * channels
    deviation = samples.double().std(0, correction=0)
    deviation = torch.where(deviation > 0, deviation, 1.0)  # a column of one value says nothing, and stays 0
    return tuple(samples.double().mean(0).tolist()), tuple(deviation.tolist())
