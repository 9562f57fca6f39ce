"""A net as pure functions over one flat dict of parameters and buffers; any `nn.Module` will do."""

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call

from semifed import keys
from semifed.nets.layers import BatchNorm, KeyedDropout, make_pure
from semifed.params import Params, Parts


class Net:
    """The structure of a net without its numbers: those are always passed in and returned."""

    def __init__(self, build: Callable[[], nn.Module], name: str = "net") -> None:
        """`build` makes the module anew; its random first parameters are drawn under a key."""
        self.name, self._build = name, build
        module = make_pure(build())
        self.parameters = frozenset(name for name, _ in module.named_parameters())
        self.buffers = frozenset(module.state_dict()) - self.parameters
        self.size = sum(parameter.numel() for parameter in module.parameters())
        module.to("meta").requires_grad_(False)
        training = copy.deepcopy(module).train()
        self._modes = {True: training, False: module.eval()}
        self.dropouts = [path for path, layer in training.named_modules() if isinstance(layer, KeyedDropout)]
        self.norms = {path: layer for path, layer in training.named_modules() if isinstance(layer, BatchNorm)}

    @classmethod
    def of(cls, module: nn.Module) -> "Net":
        """A user's own module; its present parameters are the ones a run starts from."""
        return cls(lambda: copy.deepcopy(module), type(module).__name__)

    def init(self, key: int) -> Params:
        """Fresh parameters and buffers, drawn as the module itself draws them."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(key & 0x7FFFFFFFFFFFFFFF)
            module = make_pure(self._build())
        return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}

    def evaluate(self, params: Params, x: Tensor) -> Tensor:
        """Logits in evaluation mode: no dropout, running statistics."""
        return self.call(False, params, x, {})

    def pass_with(self, key: Tensor) -> "Pass":
        """The net as a loss sees it during one step: dropout drawn from the key, statistics collected."""
        return Pass(self, key)

    def call(self, training: bool, params: Params, x: Tensor, extra: Params, branch: str = "") -> Tensor:
        """The net, or one branch of it, on the rows of `x`; `extra` holds keys and masks of its layers."""
        module, state = self._modes[training], {**params, **extra}
        if branch:
            module, prefix = module.get_submodule(branch), f"{branch}."
            state = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
        output: Tensor = functional_call(module, state, (x,))
        return output

    def take_statistics(self) -> Params:
        """The buffers that the last call in training mode has moved, by name."""
        moved: Params = {}
        for path, norm in self.norms.items():
            moved |= {f"{path}.{name}": value for name, value in norm.fresh.items()}
            norm.fresh = {}
        return moved


class Pass:
    """Forward passes of one step in training mode.

    Every call draws its own dropout masks. Batch statistics are collected by the identity of the buffer
    they belong to, so a method may call the net on any dict it puts together from its parts.
    """

    def __init__(self, net: Net, key: Tensor) -> None:
        self._net, self._key, self._calls = net, key, 0
        self._moved: dict[int, tuple[Tensor, Tensor]] = {}  # id of a buffer: the buffer, its new value

    def __call__(self, params: Params, x: Tensor, real: Tensor) -> Tensor:
        """Logits of the rows of `x`; rows that are not `real` do not touch the batch statistics."""
        return self._forward(params, x, real, "")

    def features(self, params: Params, x: Tensor, real: Tensor) -> Tensor:
        """What the net's backbone makes of the rows, before its head."""
        return self._forward(params, x, real, "features")

    def weights(self, params: Params) -> Params:
        """The entries that are trained, without the buffers."""
        return {name: value for name, value in params.items() if name in self._net.parameters}

    def evaluate(self, params: Params, x: Tensor) -> Tensor:
        """Logits in evaluation mode."""
        return self._net.evaluate(params, x)

    def statistics(self, parts: Parts) -> dict[str, Params]:
        """The buffers of these parts that the passes have moved, under their part and name."""
        flat = {part: params for part, params in parts.items() if type(params) is dict}
        moved = {
            part: {name: self._moved[id(value)][1] for name, value in params.items() if id(value) in self._moved}
            for part, params in flat.items()
        }
        return {part: params for part, params in moved.items() if params}

    def _forward(self, params: Params, x: Tensor, real: Tensor, branch: str) -> Tensor:
        net = self._net
        key = keys.fold(self._key, self._calls)
        self._calls += 1
        extra = {f"{path}.key": keys.fold(key, index) for index, path in enumerate(net.dropouts)}
        extra |= {f"{path}.real": real for path in net.norms}
        current = {name: self._moved.get(id(value), (value, value))[1] for name, value in params.items()}
        output = net.call(True, current, x, extra, branch)
        for name, value in net.take_statistics().items():
            self._moved[id(params[name])] = params[name], value
        return output
