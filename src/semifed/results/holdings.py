"""How many samples of each class everybody holds: the picture of a split, which a simulation alone can know."""

import json
from pathlib import Path
from typing import NamedTuple

from semifed.data.scenario import Scenario
from semifed.data.sources import Dataset
from semifed.errors import RunError

MOST = 1_000_000
"""Numbers of a picture that is worth keeping: beyond that nobody sees anything on it."""


class Holdings(NamedTuple):
    """Numbers of samples: a row for each client, a column for each class, and the server's own."""

    classes: tuple[str, ...]
    labelled: list[list[int]]
    unlabelled: list[list[int]]
    server_labelled: list[int]
    server_unlabelled: list[int]

    def dump(self) -> bytes:
        """As a JSON file."""
        return json.dumps(self._asdict(), separators=(",", ":")).encode() + b"\n"


def count(scenario: Scenario, dataset: Dataset) -> Holdings | None:
    """The numbers of a split; None where there are too many for a picture."""
    if len(scenario.clients) * len(dataset.classes) > MOST:
        return None
    table = scenario.table(dataset.labels.numpy(), len(dataset.classes))
    unknown = ("?",) if bool((dataset.labels < 0).any()) else ()  # samples that nobody has labelled
    return Holdings((*dataset.classes, *unknown), *(numbers.tolist() for numbers in table))


def read(path: Path) -> Holdings | None:
    """The numbers in a run's folder; None if it has none, as folders of older runs."""
    file = path / "holdings.json"
    if not file.exists():
        return None
    try:
        found = Holdings(**json.loads(file.read_bytes()))
        found = found._replace(classes=tuple(map(str, found.classes)))
        rows = [*found.labelled, *found.unlabelled, found.server_labelled, found.server_unlabelled]
        if any(len(row) != len(found.classes) or not all(type(one) is int for one in row) for row in rows):
            raise ValueError("rows differ in length")
    except OSError as error:
        raise RunError(f"{file}: cannot be read: {error.strerror}") from None
    except (ValueError, TypeError):
        raise RunError(f"{file}: is damaged; put it back from a copy, or remove it") from None
    return found
