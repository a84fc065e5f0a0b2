"""Backbones by the class of the network that they wrap."""

from collections.abc import Callable
from typing import Any

from torch import nn

from sinkscope.discovery import Names
from sinkscope.errors import UserError
from sinkscope.selection.backbones.base import Backbone

BACKBONES: Names[Callable[[Any], Backbone]] = Names("backbone")
backbone = BACKBONES.file
"""Decorator that files a backbone under the class name of the networks that it wraps."""


def wrap(network: nn.Module) -> Backbone:
    """A transformers vision model as a `Backbone`. Raises `UserError` for a class that none is known for."""
    name = type(network).__name__
    if name not in BACKBONES:
        known = ", ".join(sorted(BACKBONES))
        raise UserError(f"no way is known to select tokens in a {name}: use one of {known}, or a PlainBackbone")
    return BACKBONES[name](network)
