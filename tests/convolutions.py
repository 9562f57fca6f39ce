"""Convolutions of many sizes, ours and torch's, and how near two lists of tensors are."""

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from semifed import library
from semifed.nets import kernels

Layer = Callable[[Tensor, Tensor, Tensor], Tensor]

AVAILABLE = library.load(("nets/kernels/linear.cpp",)).code is not None and not library.switched_off()
compiled = pytest.mark.skipif(not AVAILABLE, reason=f"no kernels: {kernels.status()}")


class Case(NamedTuple):
    """Sizes of a convolution."""

    rows: int
    channels: int
    out: int
    height: int
    width: int
    kernel: int
    padding: int

    def layer(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return kernels.conv_pool_relu(x, weight, bias, self.padding)

    def plain(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.relu(F.max_pool2d(F.conv2d(x, weight, bias, padding=self.padding), 2))

    def tensors(self, seed: int = 0, clients: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Inputs, weights and bias, of one client or stacked."""
        generator = torch.Generator().manual_seed(seed)
        lead = () if clients is None else (clients,)
        taps = self.channels * self.kernel**2
        x = torch.randn(*lead, self.rows, self.channels, self.height, self.width, generator=generator)
        weight = torch.randn(*lead, self.out, self.channels, self.kernel, self.kernel, generator=generator)
        return x, weight / taps**0.5, torch.randn(*lead, self.out, generator=generator) / 4


FIRST = Case(3, 1, 10, 28, 28, 5, 0)
SECOND = Case(4, 10, 20, 12, 12, 5, 0)
CASES = [
    FIRST,
    SECOND,
    Case(2, 3, 7, 11, 13, 5, 2),
    Case(5, 4, 8, 9, 6, 3, 1),  # odd height: the last row has no window
    Case(2, 2, 1, 6, 31, 3, 0),
    Case(1, 70, 13, 5, 5, 3, 1),  # more channels than registers hold
]


def gradients(layer: Layer, tensors: tuple[Tensor, ...], seed: int = 7) -> list[Tensor]:
    """The result and the gradients of all tensors, for a random gradient of the result."""
    held = tuple(tensor.detach().clone().requires_grad_() for tensor in tensors)
    y = layer(*held)
    coming = torch.randn(y.shape, generator=torch.Generator().manual_seed(seed)).to(y)
    return [y.detach(), *torch.autograd.grad(y, held, coming)]


def assert_near(ours: list[Tensor], expected: list[Tensor]) -> None:
    # A sum that happens to cancel is as exact as its summands, which are of the size of the other numbers.
    scale = max(float(other.abs().max()) for other in expected if other.numel())
    for one, other in zip(ours, expected, strict=True):
        assert one.shape == other.shape
        assert float((one - other).abs().max() if one.numel() else 0.0) <= 1e-5 * max(scale, 1e-3)


def assert_same(ours: list[Tensor], expected: list[Tensor]) -> None:
    assert all(torch.equal(one, other) for one, other in zip(ours, expected, strict=True))
