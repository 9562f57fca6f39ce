"""Batch normalisation over the real rows of a batch: with a kernel where channels lie innermost, or in torch's way.

Torch's form takes a pass over the memory for each of some twenty operations, the kernel three forward and two back.
"""

import functools
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from semifed import library
from semifed.nets.kernels import single

Normalised = tuple[Tensor, Tensor, Tensor]
"""The result, and the mean and variance of each channel."""


def batch_norm(x: Tensor, real: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Normalised:
    """x [rows, channels, ...] normalised by mean and variance of its `real` rows (bool [rows])."""
    if _fit(x, weight, bias) and _loaded() is not None:
        normalised: Normalised = _BatchNorm.apply(x, real, weight, bias, eps)  # type: ignore[no-untyped-call]
        return normalised
    return _in_torch(x, real, weight, bias, eps)


def _in_torch(x: Tensor, real: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Normalised:
    """The same in torch's operations."""
    counted = real.to(x.dtype).reshape(-1, *[1] * (x.dim() - 1))
    axes = [0, *range(2, x.dim())]
    count = counted.sum() * x.shape[2:].numel()
    mean = (x * counted).sum(axes) / count.clamp(min=1)
    centred = (x - mean.reshape(1, -1, *[1] * (x.dim() - 2))) * counted
    # Without any real row the variance is 1, or rows of padding would grow from layer to layer.
    variance = (centred**2).sum(axes) / count.clamp(min=1) + (count == 0)
    return scaled(x, mean, variance, weight, bias, eps), mean, variance


def scaled(x: Tensor, mean: Tensor, variance: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """x normalised by a mean and a variance of each channel."""
    shape = (1, -1, *[1] * (x.dim() - 2))
    scale = (variance + eps).rsqrt()
    scale = scale if weight is None else scale * weight
    offset = -mean * scale if bias is None else bias - mean * scale
    return x * scale.reshape(shape) + offset.reshape(shape)


class _BatchNorm(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, real: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Any:
        real, y = real.contiguous(), torch.empty_like(x)
        mean, variance, inverse = (x.new_empty(x.shape[1]) for _ in range(3))
        tensors = (x, real, weight, bias, y, mean, variance, inverse)
        single.call(_loaded().batch_norm_forward, _shape(x), *tensors, eps)
        ctx.eps = eps
        ctx.save_for_backward(x, real, weight, bias, mean, inverse)
        ctx.mark_non_differentiable(mean, variance)
        return y, mean, variance

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> Any:
        x, real, weight, bias, mean, inverse = ctx.saved_tensors
        if torch.is_grad_enabled():

            def again(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
                return _in_torch(x, real, weight, bias, ctx.eps)[0]

            grad_x, grad_weight, grad_bias = single.twice_differentiable(again, (x, weight, bias), grad)
            return grad_x, None, grad_weight, grad_bias, None
        grad, grads = single.aligned(grad, x), [torch.empty_like(one) for one in (x, mean, mean)]
        single.call(_loaded().batch_norm_backward, _shape(x), grad, x, real, weight, mean, inverse, *grads)
        return grads[0], None, None if weight is None else grads[1], None if bias is None else grads[2], None


def _fit(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> bool:
    """Whether the kernel can take these; torch takes everything else, and knows best what is wrong with it.

    Vectors are torch's too: of two rows the variance may be next to nothing, and what is divided by it depends on how
    sums were rounded, which must be the same alone as mapped over clients.
    """
    return (
        single.fit(x, weight, bias)
        and single.channels_innermost(x)
        and all(one is None or (one.shape == x.shape[1:2] and one.is_contiguous()) for one in (weight, bias))
    )


def _shape(x: Tensor) -> tuple[int, ...]:
    return len(x), x.shape[2:].numel(), x.shape[1]


@functools.cache
def _loaded() -> Any:
    return library.load(("nets/kernels/batch_norm.cpp",)).code
