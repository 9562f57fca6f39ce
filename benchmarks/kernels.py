"""What the kernels gain: each layer by itself, whole local steps of the MNIST net, and its evaluation. One thread.

python benchmarks/kernels.py [--short]

Everything is run in turns, and the least CPU time of several turns counts: other processes may be running.
What `eager`, `engine` and `kernels` are is said in steps.py.
"""

import sys
from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import vmap

from semifed.engine.assemble import prepare
from semifed.experiment import Experiment
from semifed.methods.fedavg import FedAvg
from semifed.methods.fedsiam import FedSiamMT
from semifed.nets import kernels
from steps import CLIENTS, Case, Work, race, step_forms, switched


def show(name: str, times: Mapping[str, float], steps: int = 1) -> None:
    slowest = next(iter(times.values()))
    cells = [f"{form} {value / steps:8.2f} ms ({slowest / value:4.1f}x)" for form, value in times.items()]
    print(f"{name:34} " + "   ".join(cells))


# --- layers


def torch_conv(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.relu(F.max_pool2d(F.conv2d(x, weight, bias), 2))


def layer_forms(ours: Callable[..., Tensor], plain: Callable[..., Tensor], tensors: list[Tensor]) -> dict[str, Work]:
    """Forward and backward of ten clients: one by one, torch's mapped, and ours."""
    held = [tensors[0], *(tensor.requires_grad_() for tensor in tensors[1:])]

    def one_by_one() -> None:
        for own in zip(*held, strict=True):
            leaves = [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in own]
            torch.autograd.grad(plain(*leaves).sum(), [leaf for leaf in leaves if leaf.requires_grad])

    def stacked(layer: Callable[..., Tensor]) -> Work:
        wanted = [tensor for tensor in held if tensor.requires_grad]
        return lambda: torch.autograd.grad(vmap(layer)(*held).sum(), wanted)

    return {"eager": one_by_one, "mapped": stacked(plain), "kernels": stacked(ours)}


def layers(repeats: int) -> None:
    print(f"one layer, forward and backward, {CLIENTS} clients x 10 rows")
    sizes = {"conv 1-10 of 28x28": (1, 10, 28), "conv 10-20 of 12x12": (10, 20, 12)}
    for name, (channels, out, side) in sizes.items():
        x = torch.randn(CLIENTS, 10, channels, side, side, requires_grad=channels > 1)
        weight, bias = torch.randn(CLIENTS, out, channels, 5, 5) / 10, torch.zeros(CLIENTS, out)
        forms = layer_forms(kernels.conv_pool_relu, torch_conv, [x, weight, bias])
        show(f"  {name} + pool + relu", race({key: switched(True, form) for key, form in forms.items()}, repeats))
    for width, out in ((320, 50), (50, 10)):
        x = torch.randn(CLIENTS, 10, width, requires_grad=True)
        forms = layer_forms(kernels.linear, F.linear, [x, torch.randn(CLIENTS, out, width), torch.randn(CLIENTS, out)])
        show(f"  linear {width}-{out}", race({key: switched(True, form) for key, form in forms.items()}, repeats))


# --- local steps


def local_steps(repeats: int) -> None:
    print(f"local steps of the MNIST net, {CLIENTS} clients, ms for one step of all of them")
    for case in (
        Case("mnist-cnn", FedAvg(), 10),
        Case("mnist-cnn", FedSiamMT(repeat=1), 10),
        Case("mnist-cnn", FedSiamMT(repeat=1), 60, steps=7),
    ):
        show(f"  {case}", race(step_forms(case), repeats), case.steps)


def evaluation(repeats: int) -> None:
    print("evaluation of 1,000 images, 500 at once")
    assembly = prepare(Experiment.read(None, ["data=mnist5k"]))
    params, images = assembly.net.init(0), torch.randn(1000, 1, 28, 28)

    @torch.no_grad()
    def work() -> None:
        for some in torch.split(images, 500):
            assembly.net.evaluate(params, some)

    show("  mnist-cnn", race({"torch": switched(False, work), "kernels": switched(True, work)}, repeats))


def main() -> None:
    torch.set_num_threads(1)
    repeats = 3 if "--short" in sys.argv else 12
    print(f"kernels: {kernels.status()}")
    layers(5 * repeats)
    evaluation(repeats)
    local_steps(repeats)


if __name__ == "__main__":
    main()
