"""What a step does to all tensors of a net: descent and moving averages, in one pass over the memory or in torch's way.

Results are new tensors, and those that go in stay as they are. With clients in front of every tensor each client may
have a rate of its own.
"""

import ctypes
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from semifed import library
from semifed.params import expand_as

Tensors = list[Tensor]


class Rule(NamedTuple):
    """How gradients are turned into steps, as in `torch.optim.SGD`."""

    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False


def descend(
    values: Tensors, gradients: Tensors, before: Tensors | None, rate: Tensor, rule: Rule
) -> tuple[Tensors, Tensors]:
    """The values after one step and the momentum after it (none without); `rate` is a scalar or one a client."""
    code = _code(rate, values, gradients, before or ())
    if code is None:
        return _descend_in_torch(values, gradients, before, rate, rule)
    values = [_dense(value) for value in values]
    gradients, before = _aligned(gradients, values), before and _aligned(before, values)
    results = [torch.empty_like(value) for value in values]
    after = [torch.empty_like(value) for value in values] if rule.momentum else []
    numbers = (ctypes.c_float * 3)(rule.momentum, rule.weight_decay, rule.nesterov)
    moved = (before if rule.momentum else None, results, after or None)
    code.descend_all(*_frame(rate, values), numbers, *(_addresses(some) for some in (values, gradients, *moved)))
    return results, after


def follow(values: Tensors, towards: Tensors, decay: Tensor) -> Tensors:
    """Moving averages: so much of the values stays, the rest comes from what they follow."""
    code = _code(decay, values, towards)
    if code is None:
        return [aim + expand_as(decay, value) * (value - aim) for value, aim in zip(values, towards, strict=True)]
    values = [_dense(value) for value in values]
    towards, results = _aligned(towards, values), [torch.empty_like(value) for value in values]
    code.follow_all(*_frame(decay, values), *(_addresses(some) for some in (values, towards, results)))
    return results


def _descend_in_torch(
    values: Tensors, gradients: Tensors, before: Tensors | None, rate: Tensor, rule: Rule
) -> tuple[Tensors, Tensors]:
    """The same in the order of torch's own optimiser."""
    if rule.weight_decay:
        gradients = list(torch._foreach_add(gradients, values, alpha=rule.weight_decay))
    after, ahead = list[Tensor](), gradients
    if rule.momentum:
        after = gradients
        if before is not None:
            after = list(torch._foreach_add(torch._foreach_mul(before, rule.momentum), gradients))
        ahead = list(torch._foreach_add(gradients, after, alpha=rule.momentum)) if rule.nesterov else after
    if not rate.dim():
        return list(torch._foreach_add(values, ahead, alpha=-float(rate))), after
    return [value - expand_as(rate, value) * own for value, own in zip(values, ahead, strict=True)], after


def _code(rate: Tensor, *lists: Sequence[Tensor]) -> Any:
    """The kernels, if they can take these tensors."""
    fit = rate.is_cpu and all(one.is_cpu and one.dtype == torch.float32 for tensors in lists for one in tensors)
    return _loaded() if fit and not library.switched_off() else None


def _dense(value: Tensor) -> Tensor:
    """A tensor without gaps; at first all clients may share one."""
    whole = value.is_contiguous() or value.is_contiguous(memory_format=torch.channels_last)
    return value if whole else value.contiguous()


def _aligned(tensors: Tensors, like: Tensors) -> Tensors:
    """Tensors that lie in memory as these do."""
    return [
        tensor if tensor.stride() == model.stride() else torch.empty_like(model).copy_(tensor)
        for tensor, model in zip(tensors, like, strict=True)
    ]


def _frame(rate: Tensor, values: Tensors) -> tuple[Any, Any, Any]:
    """Shape, sizes and rates as the C++ side takes them: without a rate for each client all are one."""
    rates = rate.reshape(-1).tolist()
    sizes = [value.numel() // len(rates) for value in values]
    return (
        (ctypes.c_int32 * 2)(len(values), len(rates)),
        (ctypes.c_int64 * len(sizes))(*sizes),
        (ctypes.c_float * len(rates))(*rates),
    )


def _addresses(tensors: Tensors | None) -> Any:
    if tensors is None:
        return None
    return (ctypes.c_void_p * len(tensors))(*[tensor.data_ptr() for tensor in tensors])


@functools.cache
def _loaded() -> Any:
    return library.load(("nets/kernels/updates.cpp",)).code
