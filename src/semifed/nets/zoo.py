"""The papers' nets by name, for images of any size and channel count that they can hold.

Every net is ``head(features(x))``, so that a method may share the backbone alone. Parameter counts at the
papers' image sizes: mnist-cnn 21,840, cifar-cnn 5,852,170, alexnet-like 12,815,818, resnet9 6,568,640; small-cnn has
89,834 at 3x32x32. Where no net is named, `choose` takes one by the samples.
"""

import functools
import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from semifed.errors import SettingError
from semifed.nets.kernels import ConvPoolRelu, Linear, OrderedConvPoolRelu
from semifed.nets.kernels.convolve import Conv3x3, Conv3x3PoolRelu
from semifed.nets.kernels.products import WideLinear
from semifed.nets.net import Net, Shape, in_words
from semifed.nets.own import make_own
from semifed.settings import Settings, nearest, option

Norm = Literal["batch", "group", "none"]
AUTO = "auto"


def _norm(kind: Norm, channels: int) -> list[nn.Module]:
    if kind == "none":
        return []
    return [nn.BatchNorm2d(channels) if kind == "batch" else nn.GroupNorm(_groups(channels), channels)]


def _groups(channels: int) -> int:
    """32 groups as in SSFL, or as many as divide the channels."""
    return next(groups for groups in range(min(32, channels), 0, -1) if channels % groups == 0)


def _net(features: nn.Module, head: nn.Module) -> nn.Module:
    return nn.Sequential(OrderedDict(features=features, head=head))


def _width(features: nn.Module, shape: Shape) -> int:
    with torch.no_grad():
        return int(features.eval()(torch.zeros(1, *shape)).shape[1])


def mnist_cnn(shape: Shape, classes: int, norm: Norm) -> nn.Module:
    """Two 5x5 convolutions of 10 and 20 channels with pooling, then 50 units (FedSiam and FedCon, MNIST)."""
    if norm == "none":
        # The dropout stands before pooling in the paper. Channels are dropped whole and the others doubled, which
        # changes neither who wins a window nor its sign, and doubling is exact: the numbers are the same here.
        features = nn.Sequential(
            ConvPoolRelu(shape[0], 10, 5), ConvPoolRelu(10, 20, 5), nn.Dropout2d(0.5), nn.Flatten()
        )  # fmt: skip
    else:
        features = nn.Sequential(
            nn.Conv2d(shape[0], 10, 5), *_norm(norm, 10), nn.MaxPool2d(2), nn.ReLU(),
            nn.Conv2d(10, 20, 5), *_norm(norm, 20), nn.Dropout2d(0.5), nn.MaxPool2d(2), nn.ReLU(),
            nn.Flatten(),
        )  # fmt: skip
    head = nn.Sequential(Linear(_width(features, shape), 50), nn.ReLU(), nn.Dropout(0.5), Linear(50, classes))
    return _net(features, head)


def small_cnn(shape: Shape, classes: int, norm: Norm) -> nn.Module:
    """Three pooled 3x3 convolutions of 16, 32 and 64 channels, then 64 units: for colour images, quick on a CPU."""
    features: list[nn.Module] = []
    channels = shape[0]
    for out in (16, 32, 64):
        if norm == "none":
            features.append(ConvPoolRelu(channels, out, 3, padding=1))
        else:
            features += [nn.Conv2d(channels, out, 3, padding=1), *_norm(norm, out), nn.MaxPool2d(2), nn.ReLU()]
        channels = out
    trunk = nn.Sequential(*features, nn.Flatten())
    head = nn.Sequential(Linear(_width(trunk, shape), 64), nn.ReLU(), Linear(64, classes))
    return _net(trunk, head)


def cifar_cnn(shape: Shape, classes: int, norm: Norm) -> nn.Module:
    """Six 3x3 convolutions in three pooled blocks, then 1024 and 512 units (FedSiam and FedCon, CIFAR-10, SVHN)."""

    def block(channels: int, middle: int, out: int) -> list[nn.Module]:
        first = [Conv3x3(channels, middle), *_norm(norm, middle), nn.ReLU()]
        return [*first, Conv3x3(middle, out), nn.ReLU(), nn.MaxPool2d(2)]

    features = nn.Sequential(
        *block(shape[0], 32, 64), *block(64, 128, 128), nn.Dropout2d(0.05), *block(128, 256, 256), nn.Flatten()
    )
    head = nn.Sequential(
        nn.Dropout(0.1), nn.Linear(_width(features, shape), 1024), nn.ReLU(),
        nn.Linear(1024, 512), nn.ReLU(), nn.Dropout(0.1), nn.Linear(512, classes),
    )  # fmt: skip
    return _net(features, head)


def alexnet_like(shape: Shape, classes: int, norm: Norm) -> nn.Module:
    """Three convolutions of 64, 128 and 256 channels (kernels 4, 3, 2), then twice 2048 units (FedMatch)."""
    layers: list[nn.Module] = []
    channels, *size = shape
    for out, kernel in ((64, 4), (128, 3), (256, 2)):
        layers += _pooled(channels, out, kernel, size, norm)
        channels, size = out, [length // 2 for length in size]
    features = nn.Sequential(*layers, nn.Flatten())
    width = _width(features, shape)
    head = nn.Sequential(
        WideLinear(width, 2048), nn.ReLU(), WideLinear(2048, 2048), nn.ReLU(), nn.Linear(2048, classes)
    )  # fmt: skip
    return _variance_scaled(_net(features, head))


def _pooled(channels: int, out: int, kernel: int, size: list[int], norm: Norm) -> list[nn.Module]:
    """A border of zeros, a convolution that keeps the size, pooling: the same number of modules in every form.

    The paper rectifies before it pools, which gives the same numbers and takes longer.
    """
    if kernel == 3 and norm == "none":
        return [nn.Identity(), Conv3x3PoolRelu(channels, out), nn.Identity(), nn.Identity()]
    if kernel == 3:
        return [nn.Identity(), Conv3x3(channels, out), *_norm(norm, out), nn.MaxPool2d(2), nn.ReLU()]
    # What pooling leaves out of an odd size is not computed, unless a normalisation would look at it.
    height, width = (kernel // 2 - (length % 2 if norm == "none" else 0) for length in size)
    before = (kernel - 1) // 2
    border = nn.ZeroPad2d((before, width, before, height))
    if channels == 1 and norm == "none":
        return [border, OrderedConvPoolRelu(channels, out, kernel), nn.Identity(), nn.Identity()]
    return [border, nn.Conv2d(channels, out, kernel), *_norm(norm, out), nn.MaxPool2d(2), nn.ReLU()]


class _Residual(nn.Module):
    """Two convolutions around a skip; no activation after the addition."""

    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        changed: Tensor = self.layers(x)
        return x + changed


def _variance_scaled(net: nn.Module) -> nn.Module:
    """The net with first weights of variance 1 / fan-in, cut off at two deviations, and biases of 0 (FedMatch)."""
    for name, tensor in net.named_parameters():
        if tensor.dim() > 1:
            # 0.8796 is the deviation that cutting at two deviations leaves of 1.
            deviation = tensor[0].numel() ** -0.5 / 0.87962566103423978
            nn.init.trunc_normal_(tensor, std=deviation, a=-2 * deviation, b=2 * deviation)
        elif name.endswith("bias"):
            nn.init.zeros_(tensor)
    return net


def resnet9(shape: Shape, classes: int, norm: Norm) -> nn.Module:
    """ResNet-9 without biases (FedMatch's later version, FedMix; SSFL with group normalisation)."""

    def conv(channels: int, out: int) -> list[nn.Module]:
        return [Conv3x3(channels, out, bias=False), *_norm(norm, out), nn.ReLU()]

    def residual(channels: int) -> nn.Module:
        return _Residual([*conv(channels, channels), *conv(channels, channels)])

    layers = [*conv(shape[0], 64), *conv(64, 128), nn.MaxPool2d(2), residual(128)]
    layers += [*conv(128, 256), nn.MaxPool2d(2), *conv(256, 512), nn.MaxPool2d(2), residual(512)]
    features = nn.Sequential(*layers, nn.AdaptiveMaxPool2d(1), nn.Flatten())
    return _variance_scaled(_net(features, nn.Linear(512, classes, bias=False)))


def mlp(shape: Shape, classes: int, norm: Norm) -> nn.Module:
    """One hidden layer of 64 units: for vectors, tests and first tries."""
    hidden: list[nn.Module] = [nn.Flatten(), nn.Linear(math.prod(shape), 64)]
    if norm != "none":
        hidden.append(nn.BatchNorm1d(64) if norm == "batch" else nn.GroupNorm(8, 64))
    return _net(nn.Sequential(*hidden, nn.ReLU()), nn.Linear(64, classes))


@dataclass(frozen=True)
class Plan:
    """A named net: how it is built and which normalisation its paper uses."""

    build: Callable[[Shape, int, Norm], nn.Module]
    norm: Norm


NETS: dict[str, Plan] = {
    "mnist-cnn": Plan(mnist_cnn, "none"),
    "small-cnn": Plan(small_cnn, "none"),
    "cifar-cnn": Plan(cifar_cnn, "batch"),
    "alexnet-like": Plan(alexnet_like, "none"),
    "resnet9": Plan(resnet9, "none"),
    "mlp": Plan(mlp, "none"),
}


@dataclass(frozen=True)
class NetSettings(Settings):
    """The [net] table of an experiment."""

    table: ClassVar[str] = "net"

    name: str = option(
        AUTO, "which net; see `semifed list nets`, or your own as module:Class; auto: a small one that fits the samples"
    )
    norm: Literal["batch", "group", "none"] | None = option(
        None, "batch, group or none; the one of the net's paper if not given"
    )

    head: str | None = option(
        None, "your own net: the part that makes classes of features, e.g. fc; the last linear layer if not given"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.own:
            if self.norm:
                raise SettingError(f"net.norm: {self.name} is your own and brings its normalisation; leave it out")
        elif self.name not in NETS and self.name != AUTO:
            hint = nearest(self.name, NETS)
            raise SettingError(f"net.name: there is no net {self.name!r}; {hint} (your own: module:Class)")
        elif self.head:
            raise SettingError(f"net.head: {self.name} is head(features(x)) already; leave it out")

    @property
    def own(self) -> bool:
        """Whether this names a net of the user's."""
        return ":" in self.name


def choose(shape: Shape) -> str:
    """The net for samples of a shape where none is named: one that trains quickly on a CPU and can take them."""
    if len(shape) == 1 or min(shape[1:]) < 8:
        return "mlp"
    return "mnist-cnn" if shape[0] == 1 and min(shape[1:]) >= 16 and max(shape[1:]) <= 32 else "small-cnn"


def make(settings: NetSettings, shape: Shape, classes: int, norm: Norm | None = None) -> Net:
    """The net an experiment names, for images of this shape; `norm` is what the method would have."""
    if settings.own:
        return make_own(settings.name, shape, classes, settings.head)
    name = choose(shape) if settings.name == AUTO else settings.name
    plan = NETS[name]
    if len(shape) != 3 and name != "mlp":
        raise SettingError(f"net.name: {name} takes images, but the data are {in_words(shape)}; use net = mlp")
    build = functools.partial(plan.build, shape, classes, settings.norm or norm or plan.norm)
    try:
        return Net(build, shape, name, rows_alone=True)
    except RuntimeError:
        raise SettingError(
            f"net.name: {name} cannot take {in_words(shape)}: they are too small; use a smaller net, such as mlp"
        ) from None
