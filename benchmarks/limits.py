"""What one thread of this machine can do at most: products of matrices, 3x3 convolutions of a large batch, memory.

python benchmarks/limits.py [--short]
"""

import sys
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F

ROWS = 256
CONVOLUTIONS = ((64, 32), (128, 16), (256, 8))  # channels in and out, side of the image

# The layers of cifar-cnn: channels in and out and side of the image, then the widths of the linear ones.
CIFAR_CONVOLUTIONS = ((3, 32, 32), (32, 64, 32), (64, 128, 16), (128, 128, 16), (128, 256, 8), (256, 256, 8))
CIFAR_LINEAR = ((4096, 1024), (1024, 512), (512, 10))


class Rates(NamedTuple):
    """Operations and bytes a second."""

    matmul: float
    convolutions: dict[int, float]  # by the side of the image
    memory: float


def _gflops(work: Callable[[], object], operations: float, repeats: int) -> float:
    """The most of several turns."""
    least = float("inf")
    for _ in range(repeats + 1):  # the first warms up, and is seldom the best
        started = time.thread_time()
        work()
        least = min(least, time.thread_time() - started)
    return operations / least / 1e9


def matmul(repeats: int, size: int = 1024) -> float:
    """GFLOPS of a product of square matrices."""
    one, two = torch.randn(size, size), torch.randn(size, size)
    return _gflops(lambda: one @ two, 2 * size**3, 5 * repeats)


def convolution(channels: int, side: int, repeats: int) -> float:
    """GFLOPS of forward and backward, in whichever order of channels is the faster."""
    operations = 3 * 2 * ROWS * channels * channels * 9 * side * side  # forward, to the input, to the weights
    best = 0.0
    for form in (torch.channels_last, torch.contiguous_format):
        x = torch.randn(ROWS, channels, side, side).contiguous(memory_format=form).requires_grad_()
        weight = torch.randn(channels, channels, 3, 3).contiguous(memory_format=form).requires_grad_()
        out = torch.randn(ROWS, channels, side, side).contiguous(memory_format=form)

        def work(x: torch.Tensor = x, weight: torch.Tensor = weight, out: torch.Tensor = out) -> None:
            torch.autograd.grad(F.conv2d(x, weight, padding=1), (x, weight), out)

        best = max(best, _gflops(work, operations, repeats))
    return best


def memory(repeats: int, floats: int = 2**24) -> float:
    """Bytes a second that are read or written when a tensor larger than the caches near a core is copied."""
    source, target = torch.randn(floats), torch.zeros(floats)
    return 1e9 * _gflops(lambda: target.copy_(source), 8 * floats, 3 * repeats)


def rates(repeats: int) -> Rates:
    """All of them."""
    convolutions = {side: 1e9 * convolution(channels, side, repeats) for channels, side in CONVOLUTIONS}
    return Rates(1e9 * matmul(repeats), convolutions, memory(repeats))


def cifar_step(rates: Rates, batch: int) -> dict[str, float]:
    """The least seconds that a step of cifar-cnn can take at these rates, by what takes them.

    A convolution's gradients to input and to weights take as many operations as the forward pass, and the first has no
    gradient to its input. A linear layer of few rows is bound by the memory: its weights are read twice and their
    gradient is written. Descent with momentum reads values, gradients and momentum and writes values and momentum.
    """
    convolving = sum(
        (2 if channels == 3 else 3) * 2 * batch * channels * out * 9 * side**2 / rates.convolutions[side]
        for channels, out, side in CIFAR_CONVOLUTIONS
    )
    multiplying = sum(
        max(3 * 2 * batch * width * out / rates.matmul, 3 * 4 * width * out / rates.memory)
        for width, out in CIFAR_LINEAR
    )
    parameters = sum(channels * out * 9 for channels, out, _ in CIFAR_CONVOLUTIONS)
    parameters += sum(width * out for width, out in CIFAR_LINEAR)
    return {"convolutions": convolving, "linear": multiplying, "descent": 5 * 4 * parameters / rates.memory}


def show(measured: Rates) -> None:
    print("machine, one thread, the most of several turns", flush=True)
    print(f"  {'matmul 1024':36} {measured.matmul / 1e9:6.1f} GFLOPS")
    for channels, side in CONVOLUTIONS:
        name = f"conv 3x3, {channels} ch, {side}x{side}, batch {ROWS}"
        print(f"  {name:36} {measured.convolutions[side] / 1e9:6.1f} GFLOPS, forward + backward")
    print(f"  {'memory, read or written':36} {measured.memory / 1e9:6.1f} GB/s", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    show(rates(1 if "--short" in sys.argv else 4))
