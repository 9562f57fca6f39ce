"""How many images a second the views make on one core: by the kernel, by torch, and by Pillow one after the other.

    python benchmarks/views.py

Rates are images per second of processor time, the median of the repetitions: on a machine that others use as well,
processor time of one thread is what can be compared.
"""

import contextlib
import statistics
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from semifed import library
from semifed.data.views import VIEW_NAMES, ViewSettings, views
from semifed.keys import fold, key

TARGETS = {"weak": 20_000, "strong": 4_000}  # 32 x 32 colour images a second on one core
BATCHES = (100, 500, 1000)
SHAPES = ((3, 32, 32), (1, 28, 28))
ENHANCERS = (ImageEnhance.Brightness, ImageEnhance.Color, ImageEnhance.Contrast, ImageEnhance.Sharpness)
Change = Callable[[Image.Image, np.random.Generator], Image.Image]


def rate(work: Callable[[], object], images: int, repeats: int = 15) -> float:
    """Images per second of processor time."""
    work()
    seconds = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        seconds.append(time.process_time() - start)
    return images / statistics.median(seconds)


def sample(count: int, shape: tuple[int, int, int]) -> tuple[Tensor, Tensor]:
    """Random images and their keys."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (count, *shape), dtype=torch.uint8, generator=generator)
    return images, fold(torch.tensor(key(0, "benchmark")), torch.arange(count))


def batched_rates(shape: tuple[int, int, int], batch: int) -> dict[str, float]:
    """The rate of every view of this package, in the form that is switched on."""
    made = views(ViewSettings(), [0.5] * shape[0], [0.25] * shape[0], flips=True)
    images, keys = sample(batch, shape)
    return {name: rate(partial(made[name], images, keys), batch) for name in VIEW_NAMES}


def pillow_rates(shape: tuple[int, int, int], count: int = 200) -> dict[str, float]:
    """The rate of the weak and strong view done by Pillow, from array to normalised array."""
    images = sample(count, shape)[0].permute(0, 2, 3, 1).squeeze(3).contiguous().numpy()
    draw = np.random.default_rng(0)
    changes: dict[str, Change] = {"weak": pillow_weak, "strong": pillow_strong}
    return {
        name: rate(partial(pillow_batch, images, change, draw), count, repeats=5) for name, change in changes.items()
    }


def pillow_batch(images: NDArray[np.uint8], change: Change, draw: np.random.Generator) -> Tensor:
    """One image after the other, as a data loader's transform does it."""
    changed = [np.asarray(change(Image.fromarray(image), draw)) for image in images]
    return (torch.from_numpy(np.stack(changed)).float() / 255 - 0.5) / 0.25


def pillow_weak(image: Image.Image, draw: np.random.Generator) -> Image.Image:
    """Shift by up to four pixels with mirror padding (by numpy, as torchvision does it), and flip."""
    array = np.asarray(image)
    padded = np.pad(array, ((4, 4), (4, 4)) + ((0, 0),) * (array.ndim - 2), mode="reflect")
    left, top = (int(offset) for offset in draw.integers(0, 9, 2))
    moved = Image.fromarray(padded).crop((left, top, left + image.width, top + image.height))
    return ImageOps.mirror(moved) if draw.random() < 0.5 else moved


def pillow_strong(image: Image.Image, draw: np.random.Generator) -> Image.Image:
    """The weak view, two operations at probability one half, and a grey square of sixteen pixels."""
    image = pillow_weak(image, draw)
    for _ in range(2):
        kind, level, way = int(draw.integers(14)), int(draw.integers(1, 10)), int(draw.choice((-1, 1)))
        if draw.random() < 0.5:
            image = pillow_operation(image, kind, level, way)
    left, top = (max(0, int(draw.integers(size)) - 8) for size in image.size)
    image.paste(127 if image.mode == "L" else (127, 127, 127), (left, top, left + 16, top + 16))
    return image


def pillow_operation(image: Image.Image, kind: int, level: int, way: int) -> Image.Image:
    """One of FixMatch's fourteen."""
    amount = way * level * 0.03
    shift_x, shift_y = int(amount * image.width), int(amount * image.height)
    maps = ((1, amount, 0, 0, 1, 0), (1, 0, 0, amount, 1, 0), (1, 0, shift_x, 0, 1, 0), (1, 0, 0, 0, 1, shift_y))
    if kind < 4:
        return ENHANCERS[kind](image).enhance(level * 0.09 + 0.05)
    if kind < 8:
        return image.transform(image.size, Image.Transform.AFFINE, maps[kind - 4])
    others: tuple[Callable[[], Image.Image], ...] = (
        lambda: image.rotate(way * level * 3),
        lambda: ImageOps.autocontrast(image),
        lambda: ImageOps.equalize(image),
        lambda: ImageOps.posterize(image, level * 4 // 10 + 4),
        lambda: ImageOps.solarize(image, 256 - level * 256 // 10),
        image.copy,
    )
    return others[kind - 8]()


def rows_of(shape: tuple[int, int, int]) -> dict[tuple[str, str], dict[str, float]]:
    """Rates by form and batch; kernel and torch take turns, so that a change of the machine's load meets both."""
    rows = {}
    for batch in BATCHES:
        for form in ("kernel", "torch"):
            with library.off() if form == "torch" else contextlib.nullcontext():
                rows[form, str(batch)] = batched_rates(shape, batch)
    return rows | {("pillow", "1"): pillow_rates(shape)}


def settle_memory() -> None:
    """Let glibc keep freed memory instead of handing it back after every call, as it does in a process that trains.

    Freeing one block of nearly 32 MiB raises its threshold; before that small batches pay for fresh pages each time.
    """
    torch.zeros(31 * 2**20, dtype=torch.uint8)


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    settle_memory()
    print(f"images a second on one core; targets for 3 x 32 x 32: {TARGETS}")
    print(f"{'shape':<12}{'form':>8}{'batch':>8}" + "".join(f"{name:>12}" for name in VIEW_NAMES))
    for shape in SHAPES:
        for (form, batch), rates in rows_of(shape).items():
            cells = (f"{rates[name]:>12,.0f}" if name in rates else f"{'-':>12}" for name in VIEW_NAMES)
            print(f"{' x '.join(map(str, shape)):<12}{form:>8}{batch:>8}" + "".join(cells))
    if library.switched_off() or library.failures:
        print(f"`kernel` is torch too: {'; '.join(library.failures) or f'{library.SWITCH}=off'}")


if __name__ == "__main__":
    main()
