"""A net as pure functions over one flat dict of parameters and buffers; any `nn.Module` will do."""

import copy
import functools
import math
from collections.abc import Callable, Sequence
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.func import functional_call

from semifed import keys
from semifed.errors import SettingError
from semifed.nets import rows
from semifed.nets.heads import find_head, without
from semifed.nets.layers import BatchNorm, KeyedDropout, make_pure
from semifed.nets.slots import Slots
from semifed.nets.state import aliases_of, constants_of, state_of
from semifed.params import Params, Parts, layer

Shape = tuple[int, ...]
"""Channels, height and width of an image, or the length of a vector."""

LARGE = 250_000
"""Parameters of a net that takes longer for its arithmetic than torch does to get there."""

PIECE = 50
"""Images that a large backbone gets at once: what it makes of them should stay near the processor. A head gets all."""


def in_words(shape: Shape) -> str:
    """The samples that a net must take."""
    if len(shape) == 1:
        return f"vectors of {shape[0]} numbers"
    return f"images of {'x'.join(map(str, shape))} (channels x height x width)"


class Net:
    """The structure of a net without its numbers: those are always passed in and returned."""

    def __init__(
        self,
        build: Callable[[], nn.Module],
        shape: Shape,
        name: str = "net",
        head: str | None = None,
        rows_alone: bool = False,
    ) -> None:
        """`build` makes the module anew, for images of a shape; its first parameters are drawn under a key.

        `head`: the path of the part that makes classes of features; it is found if it is not given. `rows_alone`: rows
        meet in batch statistics at most; nobody knows that of a user's own module.
        """
        self.name, self.shape, self._build = name, shape, build
        module = make_pure(build())
        self.head = find_head(module, name, head)
        self.unmapped = ""  # why it cannot train several clients at once, if so
        self._aliases = aliases_of(module)
        self.parameters = frozenset(name for name, one in module.named_parameters() if one.requires_grad)
        self.buffers = frozenset(state_of(module)) - self.parameters
        self.size = sum(parameter.numel() for parameter in module.parameters())
        self._constants = constants_of(module)
        module.to("meta").requires_grad_(False)
        training = copy.deepcopy(module).train()
        self._modes = {True: training, False: module.eval()}
        self._trunks = {mode: without(one, self.head) for mode, one in self._modes.items()} if self.head else {}
        self._slots: dict[tuple[bool, str], Slots] = {}
        self.rows_alone = rows_alone
        self.dropouts = {path: one for path, one in training.named_modules() if isinstance(one, KeyedDropout)}
        self.norms = {path: one for path, one in training.named_modules() if isinstance(one, BatchNorm)}

    @classmethod
    def of(cls, module: nn.Module, shape: Shape) -> "Net":
        """A user's own module; its present parameters are the ones a run starts from."""
        return cls(functools.partial(copy.deepcopy, module), shape, type(module).__name__)

    def weights(self, params: Params) -> Params:
        """The entries that are trained, without the buffers."""
        return {name: value for name, value in params.items() if name not in self.buffers}

    def split(self, params: Params) -> tuple[Params, Params]:
        """Backbone and head: the entries of `features`, or of all but the head that was named or found."""
        backbone = {name: value for name, value in params.items() if self._in_backbone(name)}
        return backbone, {name: value for name, value in params.items() if name not in backbone}

    def _in_backbone(self, name: str) -> bool:
        return not name.startswith(f"{self.head}.") if self.head else name.startswith("features.")

    @cached_property
    def feature_width(self) -> int:
        """How many numbers the backbone makes of an image."""
        backbone, head = self.split(self.init(0))
        if not backbone or not head:
            raise SettingError(
                f"net.head: {self.name} has no head that could be found, and this method trains its backbone apart; "
                "name the part that makes classes of features, e.g. net.head = fc"
            )
        made = self._features_checked(backbone, head) if self.head else None
        if made is None:
            made = self.call(False, backbone, torch.zeros(1, *self.shape), {}, "features")
        return made.shape[1]

    def _features_checked(self, backbone: Params, head: Params) -> Tensor:
        """The features of a sample, once it is clear that the head alone makes the outputs of them."""
        x = keys.uniform(torch.arange(1), math.prod(self.shape)).reshape(1, *self.shape)
        last = self._modes[False].get_submodule(self.head)
        state = {name.removeprefix(f"{self.head}."): value for name, value in head.items()}
        try:
            made = self.call(False, backbone, x, {}, "features")
            outputs: Tensor = functional_call(last, state, (made,), tie_weights=False)
            fits = made.dim() == 2 and torch.allclose(outputs, self.evaluate({**backbone, **head}, x), atol=1e-4)
        except Exception:  # what follows the head does not take its input
            fits = False
        if not fits:
            raise SettingError(
                f"net.head: {self.head} of {self.name} is not the last part, taking one row a sample and giving the "
                "outputs; name the one that does, e.g. net.head = fc"
            )
        return made

    def init(self, key: int) -> Params:
        """Fresh parameters and buffers, drawn as the module itself draws them."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(key & 0x7FFFFFFFFFFFFFFF)
            module = make_pure(self._build())
        return {name: tensor.detach().clone() for name, tensor in state_of(module).items()}

    @torch.no_grad()
    def module(self, params: Params) -> nn.Module:
        """An ordinary torch module with these numbers, in evaluation mode, for use outside of Semifed."""
        module = self._build()
        for name, tensor in {**dict(module.named_parameters()), **dict(module.named_buffers())}.items():
            if name in params:
                tensor.copy_(params[name])
        return module.eval()

    @torch.no_grad()
    def measure(self, params: Params, images: Tensor) -> Params:
        """The parameters with the batch statistics of these images in place of the running ones."""
        if not self.norms or not len(images):
            return params
        fresh = params | {name: value * 0 for name, value in params.items() if name in self.buffers}
        one = self.pass_with(torch.zeros((), dtype=torch.int64, device=images.device))
        one(fresh, images, torch.ones(len(images), dtype=torch.bool, device=images.device))
        moved = one.statistics({"net": fresh}).get("net", {})
        # From 0 a pass goes `momentum` of the way to the batch's statistics, or all of it without a momentum.
        rates = {name: self.norms[layer(name)].momentum or 1.0 for name in moved}
        counters = {name for name in moved if not params[name].is_floating_point()}
        return params | {name: value if name in counters else value / rates[name] for name, value in moved.items()}

    def evaluate(self, params: Params, x: Tensor) -> Tensor:
        """Logits in evaluation mode: no dropout, running statistics."""
        whole = not self.rows_alone or bool(self.head) or self.size < LARGE or len(x) <= PIECE
        if whole or not x.is_cpu or torch._C._are_functorch_transforms_active():
            return self.call(False, params, x, {})
        made = [self.call(False, params, piece, {}, "features") for piece in torch.split(x, PIECE)]
        return self.call(False, params, torch.cat(made), {}, "head")

    @property
    def may_leave_rows(self) -> bool:
        """Whether rows that do not count may be left out: then no others change, and it saves more than it costs."""
        alone = self.rows_alone and not self.norms and not self.dropouts
        return alone and self.size >= LARGE and not torch._C._are_functorch_transforms_active()

    def pass_with(self, key: Tensor) -> "Pass":
        """The net as a loss sees it during one step: dropout drawn from the key, statistics collected."""
        return Pass(self, key)

    def call(self, training: bool, params: Params, x: Tensor, extra: Params, branch: str = "") -> Tensor:
        """The net, or one branch of it, on the rows of `x`; `extra` holds keys and masks of its layers."""
        layers: list[KeyedDropout | BatchNorm] = [*self.dropouts.values(), *self.norms.values()]
        for one in layers:
            one.forget()
        module, state = self._modes[training], {**self._constants_on(x.device), **params, **extra}
        state |= {alias: state[name] for alias, name in self._aliases.items() if name in state}
        if branch and self.head:
            module = self._trunks[training]
            state = {name: value for name, value in state.items() if self._in_backbone(name)}
        elif branch:
            module, prefix = module.get_submodule(branch), f"{branch}."
            state = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
        slots = self._slots.get((training, branch))
        if slots is None:
            slots = self._slots[training, branch] = Slots(module)
        return slots.call(state, x)

    def _constants_on(self, device: torch.device) -> Params:
        """What a module computes with but does not train, save or move."""
        if any(value.device != device for value in self._constants.values()):
            self._constants = {name: value.to(device) for name, value in self._constants.items()}
        return self._constants

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
        self.notes: Params = {}
        self.guesses: Params = {}

    def __call__(self, params: Params, x: Tensor, real: Tensor) -> Tensor:
        """Logits of the rows of `x`; rows that are not `real` do not touch the batch statistics."""
        return self._forward(params, x, real, "")

    def each(self, params: Params, *batches: tuple[Tensor, ...]) -> list[Tensor]:
        """Logits of several batches: the rows, which are real, and which of them count in the loss, if not all do.

        A large net takes them together, so that it has one gradient, and none of the rows that do not count.
        """
        if not self._net.may_leave_rows or len({x.shape[1:] for x, *_ in batches}) > 1:
            return [self(params, x, masks[0]) for x, *masks in batches]
        self._calls += len(batches)
        return rows.together(lambda x: self._net.call(True, params, x, {}), *batches)

    def only(self, counts: Tensor, params: Params, x: Tensor, real: Tensor) -> Tensor:
        """Logits of rows of which nobody looks at those that do not count: a large net gives 0 for them."""
        if not self._net.may_leave_rows:
            return self(params, x, real)
        self._calls += 1
        return rows.chosen(lambda x: self._net.call(True, params, x, {}), x, counts, others=False)

    def features(self, params: Params, x: Tensor, real: Tensor) -> Tensor:
        """What the net's backbone makes of the rows, before its head."""
        return self._forward(params, x, real, "features")

    def weights(self, params: Params) -> Params:
        """The entries that are trained, without the buffers."""
        return self._net.weights(params)

    def draw(self, count: int) -> Tensor:
        """Numbers in [0, 1) of this step's own."""
        self._calls += 1
        return keys.uniform(keys.fold(self._key, self._calls - 1), count)

    def note(self, name: str, value: Tensor) -> None:
        """Write down a number, or one a class, that is worth watching but is no term of the loss."""
        self.notes[name] = value.detach().float()

    def note_labels(self, label: Tensor, kept: Tensor, real: Tensor, classes: int, pool: str = "unlabelled") -> None:
        """Write down which share of the real rows of a pool got a label that counts, and of which classes these are.

        In a simulation the engine compares the labels with the hidden ones, which no method ever sees.
        """
        rows = real.sum().clamp(min=1)
        hits = kept[:, None] & (label[:, None] == torch.arange(classes, device=label.device))
        self.note("coverage", kept.sum() / rows)
        self.note("classes", hits.sum(0) / rows)
        self.guesses[pool] = torch.where(kept & real, label, -1)

    def note_agreement(self, own: Tensor, others: Sequence[Tensor], real: Tensor, heard: Tensor | None = None) -> None:
        """Write down for which share of the real rows others (logits or probabilities) name the class that we name.

        Others that are not there in every step are `heard` or not, 1 or 0; divide by the note of that name.
        """
        label, rows = own.argmax(-1), real.sum().clamp(min=1) * max(len(others), 1)
        same = sum((((label == other.argmax(-1)) & real).sum() for other in others), torch.zeros_like(rows))
        self.note("agreement", same / rows if heard is None else heard * same / rows)
        if heard is not None:
            self.note("heard", heard)

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
        for index, dropout in enumerate(net.dropouts.values()):
            dropout.folds = self._calls, index
        self._calls += 1
        extra = {f"{path}.key": self._key for path in net.dropouts}
        extra |= {f"{path}.real": real for path in net.norms}
        current = {name: self._moved.get(id(value), (value, value))[1] for name, value in params.items()}
        output = net.call(True, current, x, extra, branch)
        for name, value in net.take_statistics().items():
            self._moved[id(params[name])] = params[name], value
        return output
