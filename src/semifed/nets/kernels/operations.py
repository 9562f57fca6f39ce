"""The operations that have a kernel, on tensors stacked over clients; each knows its result and its gradient."""

import ctypes
import functools
import math
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from semifed import library
from semifed.nets.kernels.launch import launch

Gradients = tuple[Tensor | None, Tensor, Tensor]


class Operation(Protocol):
    """A layer's arithmetic. Every tensor may have leading axes of clients, the same in all of them."""

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """The result, and what the gradient has to know besides the inputs."""
        ...

    def backward(self, grad: Tensor, x: Tensor, weight: Tensor, known: Tensor, wants_x: bool) -> Gradients:
        """The gradients of x (if it is wanted), weight and bias."""
        ...


class Convolution:
    """Convolution, 2x2 max-pooling and relu at once."""

    def __init__(self, code: ctypes.CDLL, padding: int) -> None:
        self._forward = _function(code, "conv_pool_relu_forward", 5)
        self._innermost = _function(code, "conv_pool_relu_innermost", 4)
        self._backward = _function(code, "conv_pool_relu_backward", 7)
        self._padding = padding

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        *clients, rows, _, height, width = x.shape
        x, weight, bias = x.contiguous(), weight.contiguous(), bias.contiguous()
        sides = (pooled(size, weight.shape[-1], self._padding) for size in (height, width))
        y = x.new_empty((*clients, rows, weight.shape[-4], *sides))
        winner = torch.empty_like(y, dtype=torch.uint8)
        launch(self._forward, self._shape(x, weight), x, weight, bias, y, winner)
        return y, winner

    def innermost(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """The result alone, of one client without padding, channels innermost in memory."""
        rows, _, height, width = x.shape
        x, weight, bias = x.contiguous(), weight.contiguous(), bias.contiguous()
        sides = [pooled(size, weight.shape[-1], 0) for size in (height, width)]
        y = torch.empty((rows, len(weight), *sides), memory_format=torch.channels_last)
        launch(self._innermost, self._shape(x, weight), x, weight, bias, y)
        return y

    def backward(self, grad: Tensor, x: Tensor, weight: Tensor, known: Tensor, wants_x: bool) -> Gradients:
        x, weight, grad, winner = x.contiguous(), weight.contiguous(), grad.contiguous(), known.contiguous()
        grad_x = torch.empty_like(x) if wants_x else None
        grad_weight, grad_bias = torch.empty_like(weight), weight.new_empty(weight.shape[:-3])
        of = self._shape(x, weight)
        launch(self._backward, of, grad, x, weight, winner, grad_x, grad_weight, grad_bias)
        return grad_x, grad_weight, grad_bias

    def _shape(self, x: Tensor, weight: Tensor) -> Any:
        *clients, rows, channels, height, width = x.shape
        return _integers(_product(clients), rows, channels, weight.shape[-4], height, width, self._padding)


class Product:
    """A linear layer."""

    def __init__(self, code: ctypes.CDLL) -> None:
        self._forward, self._backward = _function(code, "linear_forward", 4), _function(code, "linear_backward", 6)

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        x, weight, bias = x.contiguous(), weight.contiguous(), bias.contiguous()
        y = x.new_empty((*x.shape[:-1], weight.shape[-2]))
        launch(self._forward, self._shape(x, weight), x, weight, bias, y)
        return y, x.new_empty((*x.shape[:-2], 0))

    def backward(self, grad: Tensor, x: Tensor, weight: Tensor, known: Tensor, wants_x: bool) -> Gradients:
        x, weight, grad = x.contiguous(), weight.contiguous(), grad.contiguous()
        grad_x = torch.empty_like(x) if wants_x else None
        grad_weight, grad_bias = torch.empty_like(weight), weight.new_empty(weight.shape[:-1])
        launch(self._backward, self._shape(x, weight), grad, x, weight, grad_x, grad_weight, grad_bias)
        return grad_x, grad_weight, grad_bias

    @staticmethod
    def _shape(x: Tensor, weight: Tensor) -> Any:
        *clients, rows, width = x.shape
        return _integers(_product(clients), rows, width, weight.shape[-2])


class Dropout:
    """What dropout multiplies by, as a function of keys."""

    def __init__(self, code: ctypes.CDLL) -> None:
        self._scales = code.dropout_scales
        self._scales.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_float]

    def __call__(self, keys: Tensor, folds: tuple[int, ...], count: int, probability: float) -> Tensor:
        """For every key `count` numbers: 0 with the probability, else what keeps the mean as it was."""
        scales = torch.empty((*keys.shape, count))
        shape = _integers(keys.numel(), count, _threshold(probability), len(folds))
        launch(self._scales, shape, keys.contiguous(), _folds(*folds), scales, _kept_scale(probability))
        return scales


@functools.cache
def _threshold(probability: float) -> int:
    """The first of 2^24 draws that is kept: compared in float32, as torch does."""
    return math.ceil(ctypes.c_float(probability).value * 2**24)


@functools.lru_cache(maxsize=1024)
def _folds(*values: int) -> Any:
    return (ctypes.c_int64 * len(values))(*values)


@functools.cache
def _kept_scale(probability: float) -> float:
    """Divided in float32, as torch does."""
    return float(torch.ones(()) / max(1 - probability, 1e-9))


def pooled(size: int, kernel: int, padding: int) -> int:
    """Windows along one side of an image."""
    return (size + 2 * padding - kernel + 1) // 2


@functools.cache
def convolution(kernel: int, padding: int) -> Convolution | None:
    """The convolution of one kernel size, if it could be built."""
    sources = ("nets/kernels/conv_pool_relu_forward.cpp", "nets/kernels/conv_pool_relu_backward.cpp")
    code = library.load(sources, (f"-DKERNEL={kernel}",)).code
    return Convolution(code, padding) if code else None


@functools.cache
def product() -> Product | None:
    """The linear layer, if it could be built."""
    code = product_library().code
    return Product(code) if code else None


@functools.cache
def dropout() -> Dropout | None:
    """Dropout, if it could be built."""
    code = library.load(("nets/kernels/dropout.cpp",)).code
    return Dropout(code) if code else None


def product_library() -> library.Library:
    """The smallest of the libraries: what became of it tells whether this machine can build kernels."""
    return library.load(("nets/kernels/linear.cpp",))


@functools.lru_cache(maxsize=1024)
def _integers(*values: int) -> Any:
    """The `shape` of the C++ side."""
    return (ctypes.c_int32 * len(values))(*values)


def _product(sizes: Sequence[int]) -> int:
    return functools.reduce(lambda one, other: one * other, sizes, 1)


def _function(code: ctypes.CDLL, name: str, tensors: int) -> Any:
    """A function of a library that takes a shape and the addresses of so many tensors."""
    function = code[name]
    function.argtypes = [ctypes.c_void_p] * (1 + tensors)
    return function
