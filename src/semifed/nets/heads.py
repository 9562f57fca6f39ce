"""Which part of a net is its head: named by the user, or found as the last layer that gives the classes."""

import copy

from torch import nn

from semifed.errors import SettingError

MARK = "semifed_head"


def find_head(module: nn.Module, name: str, given: str | None) -> str:
    """The path of the head; empty where the net is ``head(features(x))`` as ours are, or where none can be found.

    Found is the last linear layer (or the last 1x1 convolution), in the order in which layers were made.
    """
    given = given or getattr(module, MARK, None)
    if given:
        paths = dict(module.named_modules())
        if given not in paths or not given:
            some = [path for path, _ in module.named_children()]
            raise SettingError(f"net.head: {name} has no part {given!r}; it has {', '.join(some) or 'none'}")
        return given
    if "features" in dict(module.named_children()):
        return ""
    last = [path for path, one in module.named_modules() if isinstance(one, nn.Linear) and path]
    return last[-1] if last else ""


def without(module: nn.Module, path: str) -> nn.Module:
    """The same module, sharing all its layers, with the one at `path` handing on what it gets."""
    first, _, rest = path.partition(".")
    trunk = copy.copy(module)
    trunk._modules = dict(module._modules)
    child = module._modules[first]
    trunk._modules[first] = without(child, rest) if rest and child is not None else nn.Identity()
    return trunk
