"""What a model says of images: the likeliest class of each and how likely it is."""

import csv
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from semifed.trained.model import Model
from semifed.trained.pictures import read


class Prediction(NamedTuple):
    """One image, its likeliest class, that class's probability, and those of all."""

    file: str
    label: str
    probability: float
    probabilities: tuple[float, ...]


def predict(
    model: Model, images: Path | str, *, resize: bool = False, skip_corrupt: bool = False
) -> Iterator[Prediction]:
    """A prediction for each image of a folder, a file or an npz, in the order of their names."""
    for names, pixels in read(Path(images), model.taken, resize, skip_corrupt):
        for name, row in zip(names, model.probabilities(pixels).tolist(), strict=True):
            place = max(range(len(row)), key=row.__getitem__)
            yield Prediction(name, model.taken.classes[place], row[place], tuple(row))


def as_csv(predictions: Iterable[Prediction], classes: Sequence[str] = ()) -> str:
    """A table of file, class and probability; with `classes` a column for each of them too."""
    made = io.StringIO()
    table = csv.writer(made, lineterminator="\n")
    table.writerow(["file", "class", "probability", *classes])
    for one in predictions:
        every = [f"{value:.6f}" for value in one.probabilities] if classes else []
        table.writerow([one.file, one.label, f"{one.probability:.6f}", *every])
    return made.getvalue()


def as_json_text(predictions: Iterable[Prediction], classes: Sequence[str] = ()) -> str:
    """The same as JSON; with `classes` the probability of each of them by its name."""
    rows = []
    for one in predictions:
        row: dict[str, Any] = {"file": one.file, "class": one.label, "probability": one.probability}
        if classes:
            row["probabilities"] = dict(zip(classes, one.probabilities, strict=True))
        rows.append(row)
    return json.dumps(rows, indent=2) + "\n"
