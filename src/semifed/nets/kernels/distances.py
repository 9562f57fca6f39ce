"""Squared distances of large tensors: what takes the time is the memory, and a kernel goes through it once each way."""

import ctypes
import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from semifed import library
from semifed.nets.kernels import single

LEAST = 2**18
"""Numbers of a tensor that is large: small nets, which may be mapped, have no such tensor and torch's bits."""


def squared(one: Tensor, two: Tensor) -> Tensor:
    """The sum of (one - two)^2; the gradient has the bits of torch's."""
    if one.numel() >= LEAST and _fit(one, two) and _loaded() is not None:
        distance: Tensor = _Squared.apply(one, two)  # type: ignore[no-untyped-call]
        return distance
    return _in_torch(one, two)


def _in_torch(one: Tensor, two: Tensor) -> Tensor:
    return F.mse_loss(one, two, reduction="sum")


class _Squared(Function):
    @staticmethod
    def forward(ctx: Any, one: Tensor, two: Tensor) -> Tensor:
        ctx.save_for_backward(one, two)
        return torch.tensor(_loaded().squared_distance(one.numel(), one.data_ptr(), two.data_ptr()))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        one, two = ctx.saved_tensors
        if torch.is_grad_enabled():
            return tuple(single.twice_differentiable(_in_torch, (one, two), grad))
        pairs = ((one, two), (two, one))
        return tuple(
            _pulled(*pair, 2 * float(grad)) if needed else None
            for pair, needed in zip(pairs, ctx.needs_input_grad, strict=True)
        )


def _pulled(one: Tensor, two: Tensor, scale: float) -> Tensor:
    gradient = torch.empty_like(one)
    _loaded().scaled_difference(one.numel(), one.data_ptr(), two.data_ptr(), scale, gradient.data_ptr())
    return gradient


def _fit(one: Tensor, two: Tensor) -> bool:
    """Whether a kernel can take these: without gaps, in the same order in memory."""
    orders = (torch.contiguous_format, torch.channels_last) if one.dim() == 4 else (torch.contiguous_format,)
    dense = any(one.is_contiguous(memory_format=order) for order in orders)
    return dense and single.fit(one, two) and one.shape == two.shape and one.stride() == two.stride()


@functools.cache
def _loaded() -> Any:
    code = library.load(("nets/kernels/distances.cpp",)).code
    if code is not None:
        code.squared_distance.argtypes = [ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p]
        code.squared_distance.restype = ctypes.c_double
        code.scaled_difference.argtypes = [*code.squared_distance.argtypes, ctypes.c_float, ctypes.c_void_p]
        code.scaled_difference.restype = None
    return code
