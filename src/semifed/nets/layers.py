"""Dropout and batch normalisation without side effects: the key, the row mask and the statistics go in and out.

They stand in for torch's own in any net. Their inputs that are not parameters (`key`, `real`) are buffers
that a call supplies; what a call changes (the running statistics) is left in `fresh` for `Net` to collect.
"""

import torch
from torch import Tensor, nn

from semifed.nets.kernels import dropout_scales
from semifed.nets.kernels.batch_norm import batch_norm, scaled


class KeyedDropout(nn.Module):
    """Dropout whose mask is a pure function of a key; whole channels are dropped if `channels` is set.

    `folds` are the numbers that set this layer in this pass apart from all that draw from the same key.
    """

    key: Tensor

    def __init__(self, probability: float, channels: bool) -> None:
        super().__init__()
        self.probability, self.channels = probability, channels
        self.register_buffer("key", torch.zeros((), dtype=torch.int64), persistent=False)
        self.folds: tuple[int, ...] = ()
        self.calls = 0

    def forget(self) -> None:
        """Start a new pass of the net."""
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.probability == 0:
            return x
        folds = (*self.folds, self.calls) if self.calls else self.folds  # a layer used twice drops anew
        self.calls += 1
        shape = x.shape[:2] if self.channels else x.shape
        scale = dropout_scales(self.key, folds, shape.numel(), self.probability).to(x.dtype)
        return x * scale.reshape(*shape, *[1] * (x.dim() - 2) if self.channels else ())


class BatchNorm(nn.Module):
    """Batch normalisation over the real rows of a batch, for any number of trailing axes."""

    weight: Tensor | None
    bias: Tensor | None
    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None
    real: Tensor

    def __init__(self, like: nn.modules.batchnorm._BatchNorm) -> None:
        super().__init__()
        self.eps, self.momentum = like.eps, like.momentum
        self.weight, self.bias = like.weight, like.bias
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            self.register_buffer(name, getattr(like, name))
        self.register_buffer("real", torch.ones((), dtype=torch.bool), persistent=False)
        self.fresh: dict[str, Tensor] = {}

    def forget(self) -> None:
        """Start a new pass of the net."""
        self.fresh = {}

    def forward(self, x: Tensor) -> Tensor:
        if not self.training and self.running_mean is not None and self.running_var is not None:
            return scaled(x, self.running_mean, self.running_var, self.weight, self.bias, self.eps)
        real = self.real.expand(x.shape[0])
        y, mean, variance = batch_norm(x, real, self.weight, self.bias, self.eps)
        if self.running_mean is not None:
            self._move_statistics(mean.detach(), variance.detach(), real.sum() * x.shape[2:].numel())
        return y

    @torch.no_grad()
    def _move_statistics(self, mean: Tensor, variance: Tensor, count: Tensor) -> None:
        """Leave the running statistics after this batch in `fresh`; of one value alone there is no variance."""
        old_mean, old_variance, batches = (
            self.fresh.get(name, getattr(self, name)) for name in ("running_mean", "running_var", "num_batches_tracked")
        )
        rate = 1 / (batches + 1) if self.momentum is None else self.momentum
        unbiased = variance * count / (count - 1).clamp(min=1)
        self.fresh = {
            "running_mean": old_mean + rate * (count > 0) * (mean - old_mean),
            "running_var": old_variance + rate * (count > 1) * (unbiased - old_variance),
            "num_batches_tracked": batches + (count > 0),
        }


def make_pure(module: nn.Module) -> nn.Module:
    """Replace torch's dropout and batch normalisation by ours, everywhere inside a module, in place."""
    return _make_pure(module, {})


def _make_pure(module: nn.Module, made: dict[nn.Module, nn.Module]) -> nn.Module:
    """A layer that stands in several places is replaced by one that does."""
    if module not in made:
        made[module] = _replacement(module)
        for name, child in list(made[module]._modules.items()):
            if child is not None:
                setattr(module, name, _make_pure(child, made))
    return made[module]


def _replacement(module: nn.Module) -> nn.Module:
    if isinstance(module, nn.Dropout1d | nn.Dropout2d | nn.Dropout3d):
        return KeyedDropout(module.p, channels=True)
    if isinstance(module, nn.Dropout):
        return KeyedDropout(module.p, channels=False)
    return BatchNorm(module) if isinstance(module, nn.modules.batchnorm._BatchNorm) else module
