"""An example of a folder of images to train on: the embedded digits as files, few with a label."""

from pathlib import Path

import torch
from PIL import Image

from semifed.data import sources
from semifed.errors import RunError


def new_images(folder: Path | str, labelled: int = 10, unlabelled: int = 1000, test: int = 20) -> dict[str, int]:
    """Write train/CLASS, unlabelled and test/CLASS; `labelled` and `test` are images of each class."""
    folder = Path(folder)
    if folder.exists() and any(folder.iterdir()):
        raise RunError(f"{folder}: is there already and holds something; give another name")
    data = sources.load("mnist5k")
    counts = {"train": 0, "unlabelled": 0, "test": 0}
    for label, name in enumerate(data.classes):
        own = (data.labels == label).nonzero()[:, 0]
        for part, some in (("train", own[own < data.train][:labelled]), ("test", own[own >= data.train][:test])):
            counts[part] += _write(data.images[some], folder / part / name, some)
    rest = torch.arange(data.train)
    taken = torch.cat([(data.labels[: data.train] == label).nonzero()[:labelled, 0] for label in range(10)])
    free = rest[~torch.isin(rest, taken)][:unlabelled]
    counts["unlabelled"] = _write(data.images[free], folder / "unlabelled", free)
    return counts


def _write(images: torch.Tensor, folder: Path, numbers: torch.Tensor) -> int:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for image, number in zip(images, numbers.tolist(), strict=True):
            Image.fromarray(image[0].numpy()).save(folder / f"{number:05d}.png")
    except OSError as error:
        raise RunError(f"{folder}: cannot be written: {error.strerror}; give another name") from None
    return len(images)
