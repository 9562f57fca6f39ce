"""What operations of one client with a kernel have in common; mapped over clients they are torch's."""

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from semifed import library


def fit(*tensors: Tensor | None) -> bool:
    """Whether a kernel for one client may take these."""
    return (
        not library.switched_off()
        and not torch._C._are_functorch_transforms_active()
        and all(one is None or (one.is_cpu and one.dtype == torch.float32) for one in tensors)
    )


def channels_innermost(x: Tensor) -> bool:
    """Whether these are images [rows, channels, height, width] whose channels lie side by side in memory."""
    return x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)


def aligned(tensor: Tensor, like: Tensor) -> Tensor:
    """The tensor in the other's order in memory; itself if it is so already."""
    return tensor if tensor.stride() == like.stride() else torch.empty_like(like).copy_(tensor)


def call(function: Any, shape: Sequence[int], *arguments: Tensor | float | None) -> None:
    """Hand a function a shape, the addresses of tensors, which the caller keeps alive, and numbers."""
    given = [ctypes.c_float(one) if isinstance(one, float) else _address(one) for one in arguments]
    if function((ctypes.c_int32 * len(shape))(*shape), *given):
        raise MemoryError("a kernel found no memory to work in")


def _address(tensor: Tensor | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(None if tensor is None else tensor.data_ptr())


def twice_differentiable(
    in_torch: Callable[..., Tensor], inputs: Sequence[Tensor | None], grad: Tensor
) -> list[Tensor | None]:
    """The gradients of the inputs, each again a function of them: for a second derivative, which kernels have not."""
    wanted = [one for one in inputs if one is not None and one.requires_grad]
    found = iter(torch.autograd.grad(in_torch(*inputs), wanted, grad, create_graph=True))
    return [next(found) if one is not None and one.requires_grad else None for one in inputs]
