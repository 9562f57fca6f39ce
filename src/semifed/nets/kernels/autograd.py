"""Operations with a kernel as parts of torch: differentiable once, and stacked over clients under `vmap`.

The engine maps a loss over clients and takes the gradient outside. Torch's own way to a mapped function costs about
0.2 ms of Python a call, more than the arithmetic of a small layer, so a plain `vmap` is unwrapped here by hand;
other transforms, and a torch whose inner names have changed, go torch's way.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from semifed.nets.kernels.operations import Operation

try:
    from torch._C import _functorch as functorch

    _NAMES = ("peek_interpreter_stack", "pop_dynamic_layer_stack", "push_dynamic_layer_stack")
    SHORT_CUT = all(hasattr(functorch, name) for name in (*_NAMES, "_unwrap_batched", "_add_batch_dim"))
except ImportError:
    SHORT_CUT = False


def apply(operation: Operation, x: Tensor, weight: Tensor, bias: Tensor) -> Any:
    """The operation on one client's tensors, or inside `vmap` on those of all clients."""
    if not torch._C._are_functorch_transforms_active():
        return _compute(operation, x, weight, bias)
    if not directly_mapped():
        return _call(_Mapped, operation, x, weight, bias)[0]
    return unwrapped(lambda *tensors: apply(operation, *tensors), x, weight, bias)


def directly_mapped() -> bool:
    """Whether the innermost transform is a `vmap` that can be unwrapped."""
    return SHORT_CUT and functorch.peek_interpreter_stack().key() == functorch.TransformType.Vmap


def unwrapped(function: Callable[..., Tensor], *inputs: Tensor) -> Any:
    """A function of tensors stacked over clients, called from inside a `vmap` over them."""
    level = functorch.peek_interpreter_stack().level()
    tensors, axes = zip(*(functorch._unwrap_batched(tensor, level) for tensor in inputs), strict=True)
    mapped = any(axis is not None for axis in axes)
    popped = functorch.pop_dynamic_layer_stack()
    try:
        y = function(*(_clients_first(tensors, axes) if mapped else tensors))
    finally:
        functorch.push_dynamic_layer_stack(popped)
    return functorch._add_batch_dim(y, 0, level) if mapped else y


def _call(function: Any, *inputs: Any) -> Any:
    """A `Function`, which has no types."""
    return function.apply(*inputs)


def _compute(operation: Operation, x: Tensor, weight: Tensor, bias: Tensor) -> Any:
    """Outside all transforms; without a record where nobody asks for a gradient."""
    if wants_gradient(x, weight, bias):
        return _call(_Recorded, operation, x, weight, bias)
    return operation.forward(x, weight, bias)[0]


def wants_gradient(*tensors: Tensor | None) -> bool:
    """Whether a result of these will be asked for a gradient."""
    return torch.is_grad_enabled() and any(one is not None and one.requires_grad for one in tensors)


def _clients_first(tensors: Sequence[Tensor], axes: Sequence[int | None]) -> list[Tensor]:
    """The mapped axis in front; a tensor that all clients share is repeated without a copy."""
    clients = next(tensor.shape[axis] for tensor, axis in zip(tensors, axes, strict=True) if axis is not None)

    def in_front(tensor: Tensor, axis: int | None) -> Tensor:
        if axis is None:
            return tensor.expand(clients, *tensor.shape)
        return tensor.movedim(axis, 0) if axis else tensor

    return [in_front(tensor, axis) for tensor, axis in zip(tensors, axes, strict=True)]


class _Recorded(Function):
    """The plain form; the older style of `Function` saves half of the Python a call takes."""

    @staticmethod
    def forward(ctx: Any, operation: Operation, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        y, known = operation.forward(x, weight, bias)
        ctx.operation = operation
        ctx.save_for_backward(x, weight, known)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return _differentiate(ctx, grad)


class _Mapped(Function):
    """The form that every transform of torch.func understands."""

    @staticmethod
    def forward(operation: Operation, x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        return operation.forward(x, weight, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.operation, x, weight, _ = inputs
        ctx.save_for_backward(x, weight, output[1])
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> Any:
        return _differentiate(ctx, grad)

    @staticmethod
    def vmap(_: Any, axes: Any, operation: Operation, *tensors: Tensor) -> Any:
        return _call(_Mapped, operation, *_clients_first(tensors, axes[1:])), (0, 0)


def _differentiate(ctx: Any, grad: Tensor) -> tuple[None, Tensor | None, Tensor, Tensor]:
    x, weight, known = ctx.saved_tensors
    wants_x = ctx.needs_input_grad[1]
    if torch.is_grad_enabled() or torch._C._are_functorch_transforms_active():
        gradients = _call(_Gradient, ctx.operation, wants_x, grad, x, weight, known)
    else:
        gradients = ctx.operation.backward(grad, x, weight, known, wants_x)
    grad_x, grad_weight, grad_bias = gradients
    return None, grad_x if wants_x else None, grad_weight, grad_bias


class _Gradient(Function):
    """The gradient where a transform or a second derivative may follow; there is none."""

    @staticmethod
    def forward(operation: Operation, wants_x: bool, grad: Tensor, x: Tensor, weight: Tensor, known: Tensor) -> Any:
        grad_x, grad_weight, grad_bias = operation.backward(grad, x, weight, known, wants_x)
        if grad_x is None:  # what nobody wants must still be a tensor, with the clients in front
            grad_x = x.new_empty((*grad_bias.shape[:-1], 0))
        return grad_x, grad_weight, grad_bias

    @staticmethod
    def setup_context(_ctx: Any, _inputs: Any, _output: Any) -> None:
        """Nothing is kept."""

    @staticmethod
    def backward(_ctx: Any, *_: Tensor) -> Any:
        raise RuntimeError("this layer has no second derivative; set SEMIFED_KERNELS=off to use torch's own form")

    @staticmethod
    def vmap(_: Any, axes: Any, operation: Operation, wants_x: bool, *tensors: Tensor) -> Any:
        return _call(_Gradient, operation, wants_x, *_clients_first(tensors, axes[2:])), (0, 0, 0)
