"""Near copies of images: a perceptual hash proposes pairs, the pixels decide."""

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from semifed.data.randaugment import luminance

CHUNK = 2048
BANDS = 4  # of 16 bits each: pairs that differ in at most three bits agree in one of them
BITS = 6  # of 64 in which near copies may differ
CROWD = 200  # samples of one band's value beyond which it says nothing, such as a plain sky
ALIKE = 0.99  # correlation of two images at 16x16


def near_copies(images: Tensor) -> NDArray[np.int64]:
    """Pairs of places of images that look the same but are not the very same: encoded anew, brighter, resized."""
    hashes, small = _hashes(images)
    proposed = np.concatenate([_neighbours(hashes, band) for band in range(BANDS)])
    found = np.unique(proposed, axis=0)
    kept = [piece[_alike(piece, small, images)] for piece in np.array_split(found, len(found) // CHUNK + 1)]
    return np.concatenate(kept)


def _neighbours(hashes: NDArray[np.uint64], band: int) -> NDArray[np.int64]:
    """Pairs that agree in all bits of a band and in most of the others."""
    value = (hashes >> np.uint64(16 * band)) & np.uint64(0xFFFF)
    order = np.argsort(value, kind="stable").astype(np.int64)
    crowd = np.bincount(value.astype(np.int64), minlength=2**16)
    order = order[crowd[value[order].astype(np.int64)] <= CROWD]
    pairs = [np.empty((0, 2), np.int64)]
    for step in range(1, min(CROWD, len(order))):
        same = value[order[step:]] == value[order[:-step]]
        if not same.any():
            break
        both = np.stack([order[:-step][same], order[step:][same]], 1)
        unlike = np.unpackbits((hashes[both[:, 0]] ^ hashes[both[:, 1]]).view(np.uint8).reshape(-1, 8), axis=1).sum(1)
        pairs.append(np.sort(both[unlike <= BITS], axis=1))
    return np.concatenate(pairs)


def _alike(pairs: NDArray[np.int64], small: Tensor, images: Tensor) -> NDArray[np.bool_]:
    """Which pairs correlate at 16x16 and are not equal in every pixel."""
    first, second = torch.from_numpy(pairs).unbind(1)
    alike = (small[first] * small[second]).sum(1) > ALIKE
    other = (images[first] != images[second]).flatten(1).any(1)
    result: NDArray[np.bool_] = (alike & other).numpy()
    return result


def _hashes(images: Tensor) -> tuple[NDArray[np.uint64], Tensor]:
    """Of each image, which of its neighbouring cells is brighter as 64 bits, and itself at 16x16, standardised."""
    bits, small = [], []
    for start in range(0, len(images), CHUNK):
        grey = luminance(images[start : start + CHUNK]).float()
        cells = F.adaptive_avg_pool2d(grey, (8, 9))[:, 0]
        bits.append((cells[:, :, 1:] > cells[:, :, :-1]).flatten(1).numpy())
        flat = F.adaptive_avg_pool2d(grey, (16, 16)).flatten(1)
        flat = flat - flat.mean(1, keepdim=True)
        # An image of one value is like no other: its own row becomes 0.
        small.append(flat / flat.norm(dim=1, keepdim=True).clamp(min=1e-3))
    packed = np.packbits(np.concatenate(bits), axis=1)
    return packed.view(np.uint64).ravel(), torch.cat(small)
