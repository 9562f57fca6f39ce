"""What a module trains, saves and computes with, by name."""

from torch import nn

from semifed.nets.layers import KeyedDropout
from semifed.params import Params


def aliases_of(module: nn.Module) -> dict[str, str]:
    """The further names of tensors that stand in several places (tied weights), each with the first name."""
    named = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    first: dict[int, str] = {}
    names = {name: first.setdefault(id(tensor), name) for name, tensor in named}
    return {name: own for name, own in names.items() if name != own}


def state_of(module: nn.Module) -> Params:
    """What a module trains or saves, each tensor once."""
    named = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {name: named[name] for name in module.state_dict() if name in named}


def constants_of(module: nn.Module) -> Params:
    """Buffers that a module does not save, such as a table of positions."""
    saved = module.state_dict()
    given = {f"{path}.key" for path, layer in module.named_modules() if isinstance(layer, KeyedDropout)}
    buffers = {name: tensor.clone() for name, tensor in module.named_buffers() if name not in saved}
    return {name: tensor for name, tensor in buffers.items() if name not in given}
