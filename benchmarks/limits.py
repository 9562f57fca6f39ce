"""What one thread of this machine can do at most: products of matrices, and 3x3 convolutions of a large batch.

python benchmarks/limits.py [--short]
"""

import sys
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

ROWS = 256
CONVOLUTIONS = ((64, 32), (128, 16), (256, 8))  # channels in and out, side of the image


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


def show(repeats: int) -> None:
    print("machine, one thread, GFLOPS (the most of several)", flush=True)
    print(f"  {'matmul 1024':36} {matmul(repeats):6.1f}", flush=True)
    for channels, side in CONVOLUTIONS:
        name = f"conv 3x3, {channels} ch, {side}x{side}, batch {ROWS}"
        print(f"  {name:36} {convolution(channels, side, repeats):6.1f}   forward + backward", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    show(1 if "--short" in sys.argv else 4)
