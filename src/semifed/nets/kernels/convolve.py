"""3x3 convolutions of many channels, as large nets have them: with fewer products than torch takes, or in torch's way.

Winograd's form takes 16 products where the plain one takes 36, and sums in another order: the numbers agree to about
1e-6. It has one thread; where torch has more, torch does it.
"""

import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

from semifed import library
from semifed.nets.kernels import single
from semifed.nets.kernels.autograd import wants_gradient

CHANNELS = 32
"""The kernel takes multiples of this many channels, in and out."""


class Conv3x3(nn.Conv2d):
    """torch's 3x3 convolution with stride 1 and a border of zeros."""

    def __init__(self, channels: int, out: int, bias: bool = True) -> None:
        super().__init__(channels, out, 3, padding=1, bias=bias)

    def forward(self, input: Tensor) -> Tensor:
        return conv3x3(input, self.weight, self.bias)


class Conv3x3PoolRelu(Conv3x3):
    """`Conv3x3`, `MaxPool2d(2)`, `ReLU`."""

    def forward(self, input: Tensor) -> Tensor:
        return conv3x3_pool_relu(input, self.weight, self.bias)


def conv3x3(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The convolution of x [rows, channels, height, width]; the result has as many pixels."""
    if _fit(x, weight, bias) and _loaded() is not None:
        y: Tensor = _Convolution.apply(x, weight, bias)  # type: ignore[no-untyped-call]
        return y
    return _in_torch(x, weight, bias)


def conv3x3_pool_relu(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """relu(max-pool 2x2(convolution)); where nobody asks for a gradient, what pooling drops is not written."""
    rows, _, height, width = x.shape
    if height % 2 or width % 2 or wants_gradient(x, weight, bias) or not _fit(x, weight, bias) or _loaded() is None:
        return F.relu(F.max_pool2d(conv3x3(x, weight, bias), 2))
    y = torch.empty((rows, len(weight), height // 2, width // 2), memory_format=torch.channels_last)
    weight = _channels_last(weight)
    single.call(_loaded().convolve_pool_relu, _shape(x, weight), x, weight, bias, y)
    return y


def _in_torch(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.conv2d(x, weight, bias, padding=1)


class _Convolution(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight, bias)
        weight, size = _channels_last(weight), (len(x), len(weight), *x.shape[2:])
        y = torch.empty(size, memory_format=torch.channels_last)
        single.call(_loaded().convolve_forward, _shape(x, weight), x, weight, bias, y)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, weight, bias = ctx.saved_tensors
        if torch.is_grad_enabled():
            return tuple(single.twice_differentiable(_in_torch, (x, weight, bias), grad))
        grad, weight, shape = _channels_last(grad), _channels_last(weight), _shape(x, weight)
        grad_x, grad_weight, grad_bias = None, None, None
        if ctx.needs_input_grad[0]:
            grad_x = torch.empty_like(x)
            single.call(_loaded().convolve_back, shape, grad, weight, grad_x)
        if any(ctx.needs_input_grad[1:]):
            grad_weight, grad_bias = torch.empty_like(weight), weight.new_empty(len(weight))
            single.call(_loaded().convolve_weights, shape, grad, x, grad_weight, grad_bias)
        return grad_x, grad_weight, None if bias is None else grad_bias


def _fit(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether the kernel can take these; torch takes everything else, and knows best what is wrong with it."""
    return (
        single.fit(x, weight, bias)
        and torch.get_num_threads() == 1
        and x.dim() == weight.dim() == 4
        and single.channels_innermost(x)
        and x.numel() > 0
        and weight.shape[1:] == (x.shape[1], 3, 3)
        and not (weight.shape[0] % CHANNELS or weight.shape[1] % CHANNELS)
        and (bias is None or (bias.shape == weight.shape[:1] and bias.is_contiguous()))
    )


def _shape(x: Tensor, weight: Tensor) -> tuple[int, ...]:
    return len(x), x.shape[2], x.shape[3], x.shape[1], len(weight)


def _channels_last(tensor: Tensor) -> Tensor:
    return tensor.contiguous(memory_format=torch.channels_last)


@functools.cache
def _loaded() -> Any:
    """The kernel, if it was built for this very processor: torch's own always is."""
    built = library.load(("nets/kernels/convolve.cpp",))
    return built.code if built.note == library.NATIVE else None
