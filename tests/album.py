"""Small folders of images for tests: made on the spot, easy to tell apart, no two alike."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

CLASSES = ("dark", "light", "red")


def picture(kind: str, number: int, side: int = 12, colour: bool = True) -> NDArray[np.uint8]:
    """A noisy patch whose brightness or colour says what it is."""
    rng = np.random.default_rng([CLASSES.index(kind), number])
    base = {"dark": (40, 40, 40), "light": (200, 200, 200), "red": (200, 60, 40)}[kind]
    pixels = np.array(base) + rng.integers(-35, 36, (side, side, 3))
    return (pixels if colour else pixels[..., :1].repeat(3, -1)).astype(np.uint8)


def save(path: Path, pixels: NDArray[np.uint8]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return path


def album(root: Path, labelled: int = 8, unlabelled: int = 60, test: int = 5) -> Path:
    """Class folders under train/ and test/, and a folder of images without labels."""
    for kind in CLASSES:
        for number in range(labelled):
            save(root / "train" / kind / f"{number:03d}.png", picture(kind, number))
        for number in range(test):
            save(root / "test" / kind / f"{number:03d}.png", picture(kind, 10_000 + number))
    for number in range(unlabelled):
        save(root / "unlabelled" / f"{number:03d}.png", picture(CLASSES[number % 3], 20_000 + number))
    return root
