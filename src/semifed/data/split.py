"""The split that a scenario leads to: who holds which samples and which labels, as indices into a data set.

Every sample is in exactly one place: with a client or the server, labelled or not, in the validation set,
in the test set, or listed as unused.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from semifed.data import split_file
from semifed.data.partitions import Indices
from semifed.errors import DataError


@dataclass(frozen=True, eq=False)
class Holding:
    """The samples of one client or of the server; `unlabelled` is in the order of arrival."""

    labelled: Indices
    unlabelled: Indices

    def __post_init__(self) -> None:
        _freeze(self)

    def __len__(self) -> int:
        return self.labelled.size + self.unlabelled.size


class Table(NamedTuple):
    """Numbers of samples: a row for each client and a column for each class, and the server's own two rows."""

    labelled: Indices
    unlabelled: Indices
    server_labelled: Indices
    server_unlabelled: Indices


@dataclass(frozen=True, eq=False)
class Scenario:
    """A split of one data set; `arrival_sizes[k, t]` of client k's unlabelled samples arrive in step t."""

    clients: tuple[Holding, ...]
    server: Holding
    validation: Indices
    test: Indices
    unused: Indices
    arrival_sizes: Indices
    size: int
    rounds_per_arrival: int
    data: str  # hash of the data set's labels, so that a split is never used with other data
    missing: tuple[str, ...] = ()  # names of classes without any label

    def __post_init__(self) -> None:
        _freeze(self)

    @property
    def arrivals(self) -> int:
        return int(self.arrival_sizes.shape[1])

    def unlabelled_at(self, client: int, round: int) -> Indices:
        """The unlabelled samples of the arrival that is current in this round; the last one stays current."""
        sizes = self.arrival_sizes[client]
        step = min(round // self.rounds_per_arrival, self.arrivals - 1)
        start = int(sizes[:step].sum())
        return self.clients[client].unlabelled[start : start + int(sizes[step])]

    def active(self) -> Indices:
        """The ids of the clients that hold anything."""
        return np.flatnonzero([len(holding) for holding in self.clients])

    def table(self, labels: Indices, classes: int | None = None) -> Table:
        """Numbers of samples of each class, for display; samples whose label nobody knows have a last column."""
        classes = classes or int(labels.max()) + 1
        if labels.min() < 0:
            labels, classes = np.where(labels < 0, classes, labels), classes + 1

        def count(parts: Sequence[Indices]) -> Indices:
            row = np.repeat(np.arange(len(parts)), [part.size for part in parts])
            cells = np.bincount(row * classes + labels[np.concatenate(parts)], minlength=len(parts) * classes)
            return cells.reshape(len(parts), classes)

        return Table(
            count([holding.labelled for holding in self.clients]),
            count([holding.unlabelled for holding in self.clients]),
            count([self.server.labelled])[0],
            count([self.server.unlabelled])[0],
        )

    def digest(self) -> str:
        """A hash of the whole content, the same on every platform."""
        state = hashlib.sha256(b"semifed-scenario 1\n")
        state.update(self._facts().encode())
        for name, array in sorted(self._arrays().items()):
            state.update(f"\n{name} {array.size}\n".encode())
            state.update(array.astype("<i8").tobytes())
        return state.hexdigest()

    def save(self, path: str | Path) -> None:
        """Write to one file; a file of that name is replaced in one step."""
        split_file.write(Path(path), self._arrays(), {"facts": self._facts(), "digest": self.digest()})

    @staticmethod
    def load(path: str | Path) -> "Scenario":
        """Read a saved split and check its hash and that it is a valid split."""
        arrays, facts = split_file.read(Path(path))
        try:
            scenario = _assemble(arrays, json.loads(facts["facts"]))
            digest = scenario.digest()
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(f"{path}: the split file is damaged; make it anew with `semifed split make`") from error
        if digest != facts.get("digest"):
            raise DataError(f"{path}: the content does not match its hash; make it anew with `semifed split make`")
        try:
            scenario.validate()
        except DataError as error:
            raise DataError(f"{path}: {error}") from error
        return scenario

    def validate(self) -> None:
        """Every sample of the data set in exactly one place, none outside, and arrivals that add up."""
        everything = np.concatenate([indices for _, indices in self._places()])
        inside = (everything >= 0) & (everything < self.size)
        if everything.size != self.size or not inside.all() or np.unique(everything).size != self.size:
            raise DataError(self._fault())
        held = np.array([holding.unlabelled.size for holding in self.clients], np.int64)
        if self.arrival_sizes.shape[0] != held.size or self.arrivals < 1 or self.rounds_per_arrival < 1:
            raise DataError("arrivals: there must be at least one, of at least one round, for every client")
        wrong = (self.arrival_sizes < 0).any(axis=1) | (self.arrival_sizes.sum(axis=1) != held)
        for client in np.flatnonzero(wrong)[:1]:
            raise DataError(f"client {client}: its arrivals do not add up to its {held[client]} unlabelled samples")

    def verify(self, labels: NDArray[np.integer], content: NDArray[np.integer] | None = None) -> None:
        """Check the split against the data: the same samples, and no test image held elsewhere.

        `content` has a hash for each image (see `sources.fingerprints`).
        """
        self.validate()
        if labels.size != self.size:
            raise DataError(f"the split is of {self.size} samples, but the data have {labels.size}; use the same data")
        if hash_labels(np.asarray(labels, np.int64)) != self.data:
            raise DataError("the split was made for data with other labels or another order; use the same data")
        if content is None:
            return
        if content.shape != (self.size,):
            raise DataError(f"{content.size} content hashes for {self.size} samples; give one for each")
        training = np.ones(self.size, np.bool_)
        training[self.test] = False
        leaked = self.test[np.isin(content[self.test], content[training])]
        if leaked.size:
            twin = np.flatnonzero(training & (content == content[leaked[0]]))[0]
            raise DataError(
                f"{leaked.size} test images are also held elsewhere, the first is sample {leaked[0]}, equal to sample "
                f"{twin} ({self._holder(int(twin))}); remove the duplicates from the data"
            )

    def _places(self) -> Iterator[tuple[str, Indices]]:
        for number, holding in enumerate(self.clients):
            yield f"client {number} (labelled)", holding.labelled
            yield f"client {number} (unlabelled)", holding.unlabelled
        yield "the server (labelled)", self.server.labelled
        yield "the server (unlabelled)", self.server.unlabelled
        yield "the validation set", self.validation
        yield "the test set", self.test
        yield "unused", self.unused

    def _holder(self, sample: int) -> str:
        return next(name for name, indices in self._places() if sample in indices)

    def _fault(self) -> str:
        """What is wrong with a split that is not disjoint and complete; slow, and only called to say so."""
        seen: dict[int, str] = {}
        for name, indices in self._places():
            for sample in indices.tolist():
                if not 0 <= sample < self.size:
                    return f"{name}: sample {sample} is outside the data set of {self.size}"
                if sample in seen:
                    return f"sample {sample} is in two places: {seen[sample]} and {name}"
                seen[sample] = name
        absent = next(sample for sample in range(self.size) if sample not in seen)
        return f"sample {absent} is held by nobody and not listed as unused"

    def _facts(self) -> str:
        facts = {
            "arrivals": self.arrivals,
            "data": self.data,
            "missing": list(self.missing),
            "rounds_per_arrival": self.rounds_per_arrival,
            "size": self.size,
        }
        return json.dumps(facts, sort_keys=True)

    def _arrays(self) -> dict[str, Indices]:
        """The content as flat arrays: for the hash and for the file."""
        nothing = [np.empty(0, np.int64)]  # so that a list of no clients can be joined too
        return {
            "client_labelled": np.concatenate([*(holding.labelled for holding in self.clients), *nothing]),
            "client_labelled_sizes": np.array([holding.labelled.size for holding in self.clients], np.int64),
            "client_unlabelled": np.concatenate([*(holding.unlabelled for holding in self.clients), *nothing]),
            "client_arrival_sizes": np.ascontiguousarray(self.arrival_sizes).ravel(),
            "server_labelled": self.server.labelled,
            "server_unlabelled": self.server.unlabelled,
            "validation": self.validation,
            "test": self.test,
            "unused": self.unused,
        }


def hash_labels(labels: Indices) -> str:
    """A hash of a data set's labels, by which a split knows its data."""
    return hashlib.sha256(labels.astype("<i8").tobytes()).hexdigest()


def _assemble(arrays: Mapping[str, Indices], facts: Mapping[str, Any]) -> Scenario:
    """The reverse of `_arrays` and `_facts`; ValueError if the sizes do not fit each other."""
    arrival_sizes = arrays["client_arrival_sizes"].reshape(-1, facts["arrivals"])
    labelled = _cut(arrays["client_labelled"], arrays["client_labelled_sizes"])
    unlabelled = _cut(arrays["client_unlabelled"], arrival_sizes.sum(axis=1))
    return Scenario(
        clients=tuple(Holding(*parts) for parts in zip(labelled, unlabelled, strict=True)),
        server=Holding(arrays["server_labelled"], arrays["server_unlabelled"]),
        validation=arrays["validation"],
        test=arrays["test"],
        unused=arrays["unused"],
        arrival_sizes=arrival_sizes,
        size=int(facts["size"]),
        rounds_per_arrival=int(facts["rounds_per_arrival"]),
        data=str(facts["data"]),
        missing=tuple(facts["missing"]),
    )


def _cut(array: Indices, sizes: Indices) -> list[Indices]:
    if (sizes < 0).any() or sizes.sum() != array.size:
        raise ValueError("sizes do not add up")
    return np.split(array, np.cumsum(sizes)[:-1]) if sizes.size else []


def _freeze(record: Holding | Scenario) -> None:
    """Frozen arrays in a frozen dataclass: a split that is being trained on never changes."""
    for field in fields(record):
        value = getattr(record, field.name)
        if isinstance(value, np.ndarray):
            if value.dtype != np.int64:
                raise DataError(f"{field.name}: indices must be int64, not {value.dtype}")
            value = value.view()
            value.flags.writeable = False
            object.__setattr__(record, field.name, value)
