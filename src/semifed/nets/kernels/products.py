"""Linear layers of large nets: by oneDNN where torch's own library for matrix products is slow, else in torch's way.

torch hands products of float32 to Intel's MKL, which on processors of other makers takes a path of half the speed;
oneDNN, which torch brings along for convolutions, is as fast there as anywhere. The choice is made by the maker of the
processor, not by a timing, so that a run repeats to the last bit. The numbers agree to about 1e-6.
"""

import functools
import platform
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

from semifed.nets.kernels import single

MAKERS = ("AuthenticAMD", "HygonGenuine")
"""Makers of processors that are known to be slower with MKL."""


class WideLinear(nn.Linear):
    """torch's linear layer with a bias."""

    def forward(self, input: Tensor) -> Tensor:
        return wide_linear(input, self.weight, self.bias)


def wide_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x weight' + bias of x [rows, width]."""
    if x.dim() == 2 and single.fit(x, weight, bias) and len(x) and found() is not None:
        y: Tensor = _Product.apply(x, weight, bias)  # type: ignore[no-untyped-call]
        return y
    return F.linear(x, weight, bias)


class _Product(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight, bias)
        return _times(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, weight, bias = ctx.saved_tensors
        if torch.is_grad_enabled():
            return tuple(single.twice_differentiable(F.linear, (x, weight, bias), grad))
        needed = ctx.needs_input_grad
        return (
            _times(grad, weight.t(), None) if needed[0] else None,
            _times(grad.t().contiguous(), x.t(), None) if needed[1] else None,
            grad.sum(0) if bias is not None and needed[2] else None,
        )


def _times(left: Tensor, right: Tensor, bias: Tensor | None) -> Tensor:
    """left right' + bias."""
    product: Tensor = found()(left, right, bias, "none", [], "")
    return product


@functools.cache
def found() -> Any:
    """oneDNN's product, where this torch has it and this processor needs it."""
    if not (torch._C.has_mkl and torch._C._has_mkldnn and any(name in _maker() for name in MAKERS)):
        return None
    return getattr(torch.ops.mkldnn, "_linear_pointwise", None)


def _maker() -> str:
    """What the system says of its processor, in which the maker's name is."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith("vendor_id")), "")
