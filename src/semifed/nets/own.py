"""A user's own net by name: ``module:Class``, or ``module:function`` that makes one, built for the data at hand."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

from semifed.errors import SettingError
from semifed.nets.net import Net, Shape
from semifed.settings import find_named


def make_own(name: str, shape: Shape, classes: int, head: str | None = None) -> Net:
    """The net that a class or a function makes, asked for what its parameters name.

    Among the names that are understood: shape; channels, in_channels or in_chans; classes or num_classes; size or
    img_size. A parameter of another name must have a default.
    """
    build = functools.partial(_build, name, find(name), _fitting(find(name), name, shape, classes))
    return Net(build, shape, name.partition(":")[2], head)


def find(name: str) -> Callable[..., Any]:
    """What a name stands for, imported; the current folder is looked in too."""
    found = find_named(name, "net.name")
    is_net = inspect.isclass(found) and issubclass(found, nn.Module)
    if not is_net and not inspect.isfunction(found):
        module_name, _, inner = name.partition(":")
        raise SettingError(f"net.name: {module_name} has no class {inner!r} that is an nn.Module, nor such a function")
    made: Callable[..., Any] = found
    return made


def _fitting(make: Callable[..., Any], name: str, shape: Shape, classes: int) -> dict[str, Any]:
    """The arguments that a class or function has names for."""
    channels, side = shape[0], shape[-1]
    known = {
        "shape": shape, "classes": classes, "num_classes": classes, "channels": channels, "in_channels": channels,
        "in_chans": channels, "size": side, "img_size": side, "columns": shape[0], "in_features": shape[0],
    }  # fmt: skip
    parameters = inspect.signature(make).parameters.values()
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    for one in parameters:
        if one.kind in named and one.name not in known and one.default is inspect.Parameter.empty:
            raise SettingError(
                f"net.name: {name} wants {one.name!r}, which is not known here; give it a default, or call it one of "
                f"{', '.join(known)}"
            )
    return {one.name: known[one.name] for one in parameters if one.kind in named and one.name in known}


def _build(name: str, make: Callable[..., Any], arguments: dict[str, Any]) -> nn.Module:
    module = make(**arguments)
    if not isinstance(module, nn.Module):
        raise SettingError(f"net.name: {name} makes a {type(module).__name__}, wanted an nn.Module")
    return module
