"""Near copies of images: a perceptual hash proposes pairs, the pixels decide."""

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from semifed.data.randaugment import luminance

CHUNK = 2048
BANDS = 4  # of 16 bits each: pairs that differ in at most three bits agree in one of them
CROWD = 200  # samples of one band's value beyond which it says nothing, such as a plain sky
ALIKE = 0.99  # correlation of two images at 16x16


def near_copies(images: Tensor) -> NDArray[np.int64]:
    """Pairs of places of images that look the same but are not the very same: encoded anew, brighter, resized."""
    hashes, small = _hashes(images)
    pairs: set[tuple[int, int]] = set()
    for band in range(BANDS):
        value = (hashes >> np.uint64(16 * band)) & np.uint64(0xFFFF)
        order = np.argsort(value, kind="stable")
        cuts = np.flatnonzero(np.diff(value[order])) + 1
        for group in np.split(order, cuts):
            if 1 < len(group) <= CROWD:
                pairs |= _alike(group, small)
    found = np.array(sorted(pairs), np.int64).reshape(-1, 2)
    if not len(found):
        return found
    other: NDArray[np.bool_] = (images[found[:, 0]] != images[found[:, 1]]).flatten(1).any(1).numpy()
    return found[other]


def _alike(group: NDArray[np.int64], small: Tensor) -> set[tuple[int, int]]:
    rows = small[group]
    likeness = torch.triu(rows @ rows.T, 1)
    return {
        (min(a, b), max(a, b))
        for a, b in ((int(group[one]), int(group[two])) for one, two in (likeness > ALIKE).nonzero().tolist())
    }


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
