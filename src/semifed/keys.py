"""Keyed randomness: every draw is a pure function of what it is for, never of what was drawn before.

A key is a 64-bit integer made from (seed, purpose, round, client, step, ...). Numbers come from hashing
the key with a counter, so they do not depend on chunk size, worker count, engine or order, and a tensor
of keys draws for a whole cohort at once, also under `vmap`.
"""

import hashlib
import operator
from typing import SupportsIndex

import torch
from torch import Tensor

_GOLDEN = -0x61C8864680B583EB  # 2**64 / golden ratio, as a signed 64-bit integer
_MIX_1 = -0x40A7B892E31B1A47
_MIX_2 = -0x6B2FB644ECCEEE15


def key(*parts: SupportsIndex | str) -> int:
    """One key from named ingredients, e.g. ``key(seed, "cohort", round)``."""
    text = "\x1f".join(f"str:{part}" if isinstance(part, str) else f"int:{operator.index(part)}" for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little", signed=True)


def fold(keys: Tensor, more: Tensor | int) -> Tensor:
    """New keys from keys and an index; both broadcast."""
    if isinstance(more, int):
        return _scramble(keys + _signed(_GOLDEN * (more + 1)))
    return _scramble(keys + _GOLDEN * (more.to(keys.device) + 1))


def uniform(keys: Tensor, count: int) -> Tensor:
    """`count` floats in [0, 1) for each key, as a new last axis."""
    counter = torch.arange(count, device=keys.device)
    return ((fold(keys[..., None], counter) >> 40) & 0xFFFFFF).float() * 2.0**-24


def integers(keys: Tensor, count: int, low: int, high: int) -> Tensor:
    """`count` integers in [low, high] for each key, as a new last axis."""
    counter = torch.arange(count, device=keys.device)
    return low + ((fold(keys[..., None], counter) >> 16) & 0x7FFFFFFF) % (high - low + 1)


def permutation(seed: int, count: int) -> Tensor:
    """The numbers 0 .. count-1 in an order that depends on the key alone."""
    hashes = fold(torch.tensor(seed), torch.arange(count))
    return torch.argsort(hashes, stable=True)


def _signed(number: int) -> int:
    """The signed 64-bit integer with these lowest bits, which is how tensors count."""
    return (number + 2**63) % 2**64 - 2**63


def _scramble(z: Tensor) -> Tensor:
    """The finaliser of splitmix64; `&` turns the arithmetic shift of int64 into a logical one."""
    z = (z ^ ((z >> 30) & 0x3FFFFFFFF)) * _MIX_1
    z = (z ^ ((z >> 27) & 0x1FFFFFFFFF)) * _MIX_2
    return z ^ ((z >> 31) & 0x1FFFFFFFF)
