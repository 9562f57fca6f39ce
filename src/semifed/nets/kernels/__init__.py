"""The seam between nets and kernels: layers that small nets spend their time in, as fast as this machine can.

Where clients train small nets, torch's convolution and pooling take ten times as long as their arithmetic needs, and
mapped over clients they are hardly faster. The layers here compute the same (to about 1e-6) with kernels of our own,
stacked over clients; a client's numbers are the same to the last bit whomever it is stacked with, and whatever rows
of padding it has. Without a compiler, on another device or type, and with SEMIFED_KERNELS=off they are torch's own
operations; `status` tells. Measured by benchmarks/kernels.py: they gain at large batches too, so there is no limit.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from semifed import keys, library
from semifed.nets.kernels import operations
from semifed.nets.kernels.autograd import apply, directly_mapped, unwrapped, wants_gradient

LARGEST_KERNEL = 7
VECTOR = 16
"""Channels that lie in one vector where vectors are longest."""


class ConvPoolRelu(nn.Module):
    """`Conv2d` with stride 1, `MaxPool2d(2)`, `ReLU`; the parameters and their first draws are those of Conv2d."""

    def __init__(self, channels: int, out: int, kernel: int, padding: int = 0) -> None:
        super().__init__()
        self.weight, self.bias = nn.Conv2d(channels, out, kernel).parameters()
        self.padding = padding

    def forward(self, x: Tensor) -> Tensor:
        return conv_pool_relu(x, self.weight, self.bias, self.padding)

    def extra_repr(self) -> str:
        out, channels, kernel, _ = self.weight.shape
        return f"{channels}, {out}, kernel={kernel}, padding={self.padding}"


class OrderedConvPoolRelu(ConvPoolRelu):
    """The same in the order in memory that the images have, for layers that are faster with it."""

    def forward(self, x: Tensor) -> Tensor:
        if torch._C._are_functorch_transforms_active() or x.stride(1) != 1:
            return super().forward(x)
        if not self.padding and not wants_gradient(x, self.weight, self.bias):
            return _innermost(x, self.weight, self.bias)
        return super().forward(x).contiguous(memory_format=torch.channels_last)


class Linear(nn.Linear):
    """torch's linear layer with a bias."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__(width, out)

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


def conv_pool_relu(x: Tensor, weight: Tensor, bias: Tensor, padding: int = 0) -> Tensor:
    """relu(max-pool 2x2(convolution)) of x [rows, channels, height, width], with stride 1 and zero padding."""
    if _fit(x, weight, bias) and _leaves_windows(x, weight, padding):
        operation = operations.convolution(weight.shape[-1], padding)
        if operation is not None:
            y: Tensor = apply(operation, x, weight, bias)
            return y
    return F.relu(F.max_pool2d(F.conv2d(x, weight, bias, padding=padding), 2))


def _innermost(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The same bits without padding or gradient, channels innermost in memory."""
    if _fit(x, weight, bias) and _leaves_windows(x, weight, 0) and len(weight) % VECTOR == 0:
        operation = operations.convolution(weight.shape[-1], 0)
        if operation is not None:
            return operation.innermost(x, weight, bias)
    return conv_pool_relu(x, weight, bias).contiguous(memory_format=torch.channels_last)


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """x weight' + bias of x [rows, width]."""
    if _fit(x, weight, bias) and x.dim() == 2:
        operation = operations.product()
        if operation is not None:
            y: Tensor = apply(operation, x, weight, bias)
            return y
    return F.linear(x, weight, bias)


def dropout_scales(key: Tensor, folds: tuple[int, ...], count: int, probability: float) -> Tensor:
    """What dropout multiplies `count` numbers by: 0 with the probability, else what keeps the mean as it was.

    They are drawn from the key folded with these numbers one after the other.
    """
    if key.is_cpu and count < 2**31 and not library.switched_off():
        operation, mapped = operations.dropout(), torch._C._are_functorch_transforms_active()
        if operation is not None and not mapped:
            return operation(key, folds, count, probability)
        if operation is not None and directly_mapped():
            scales: Tensor = unwrapped(lambda key: dropout_scales(key, folds, count, probability), key)
            return scales
    for number in folds:
        key = keys.fold(key, number)
    return (keys.uniform(key, count) >= probability).float() / max(1 - probability, 1e-9)


def status() -> str:
    """Which form the layers of this module take in this process, in a few words for a record."""
    if library.switched_off():
        return f"torch ({library.SWITCH}=off)"
    note = operations.product_library().note
    return f"torch ({'; '.join(library.failures)})" if library.failures else note


def _fit(x: Tensor, weight: Tensor, bias: Tensor) -> bool:
    """Whether a kernel can take these; torch takes everything else, and knows best what is wrong with it."""
    return (
        not library.switched_off()
        and (x.is_cpu and weight.is_cpu and bias.is_cpu)
        and x.dtype == weight.dtype == bias.dtype == torch.float32
        and x.dim() == weight.dim()
        and x.shape[1] == weight.shape[1]
        and bias.shape == weight.shape[:1]
        and weight.numel() > 0
    )


def _leaves_windows(x: Tensor, weight: Tensor, padding: int) -> bool:
    """Whether these are images and a square kernel that leaves at least one window of them."""
    if x.dim() != 4 or padding < 0:
        return False
    high, wide = weight.shape[2:]
    return high == wide <= LARGEST_KERNEL and min(operations.pooled(size, high, padding) for size in x.shape[2:]) >= 1
