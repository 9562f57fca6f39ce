"""Dropout and batch normalisation without side effects: the key, the row mask and the statistics go in and out.

They stand in for torch's own in any net. Their inputs that are not parameters (`key`, `real`) are buffers
that a call supplies; what a call changes (the running statistics) is left in `fresh` for `Net` to collect.
"""

import torch
from torch import Tensor, nn

from semifed import keys


class KeyedDropout(nn.Module):
    """Dropout whose mask is a pure function of a key; whole channels are dropped if `channels` is set."""

    key: Tensor

    def __init__(self, probability: float, channels: bool) -> None:
        super().__init__()
        self.probability, self.channels = probability, channels
        self.register_buffer("key", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.probability == 0:
            return x
        shape = x.shape[:2] if self.channels else x.shape
        kept = keys.uniform(self.key, shape.numel()).reshape(shape) >= self.probability
        scale = kept.to(x.dtype) / max(1 - self.probability, 1e-9)
        return x * (scale.reshape(*shape, *[1] * (x.dim() - 2)) if self.channels else scale)


class BatchNorm(nn.Module):
    """Batch normalisation over the real rows of a batch, for any number of trailing axes."""

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor
    real: Tensor

    def __init__(self, like: nn.modules.batchnorm._BatchNorm) -> None:
        super().__init__()
        self.eps, self.momentum = like.eps, 0.1 if like.momentum is None else like.momentum
        self.weight, self.bias = like.weight, like.bias
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            self.register_buffer(name, getattr(like, name))
        self.register_buffer("real", torch.ones((), dtype=torch.bool), persistent=False)
        self.fresh: dict[str, Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        mean, variance = self._measure(x) if self.training else (self.running_mean, self.running_var)
        shape = (1, -1, *[1] * (x.dim() - 2))
        scale = self.weight * (variance + self.eps).rsqrt()
        return x * scale.reshape(shape) + (self.bias - mean * scale).reshape(shape)

    def _measure(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of the real rows; the running ones are moved towards them."""
        real = self.real.to(x.dtype).expand(x.shape[0]).reshape(-1, *[1] * (x.dim() - 1))
        axes = [0, *range(2, x.dim())]
        count = real.sum() * x[0, 0].numel()
        mean = (x * real).sum(axes) / count.clamp(min=1)
        centred = (x - mean.reshape(1, -1, *[1] * (x.dim() - 2))) * real
        variance = (centred**2).sum(axes) / count.clamp(min=1)
        with torch.no_grad():
            rate = self.momentum * (count > 0)
            unbiased = variance * count / (count - 1).clamp(min=1)
            self.fresh = {
                "running_mean": self.running_mean + rate * (mean.detach() - self.running_mean),
                "running_var": self.running_var + rate * (unbiased.detach() - self.running_var),
                "num_batches_tracked": self.num_batches_tracked + (count > 0),
            }
        return mean, variance


def make_pure(module: nn.Module) -> nn.Module:
    """Replace torch's dropout and batch normalisation by ours, everywhere inside a module, in place."""
    for name, child in list(module.named_children()):
        if isinstance(child, nn.Dropout1d | nn.Dropout2d | nn.Dropout3d):
            setattr(module, name, KeyedDropout(child.p, channels=True))
        elif isinstance(child, nn.Dropout):
            setattr(module, name, KeyedDropout(child.p, channels=False))
        elif isinstance(child, nn.modules.batchnorm._BatchNorm) and child.track_running_stats and child.affine:
            setattr(module, name, BatchNorm(child))
        else:
            make_pure(child)
    return module
