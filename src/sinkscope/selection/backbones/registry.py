"""Backbones by the class of the network that they wrap."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from torch import nn

from sinkscope.errors import UserError
from sinkscope.selection.backbones.base import Backbone

_BACKBONES: dict[str, Callable[[Any], Backbone]] = {}

BACKBONES: Mapping[str, Callable[[Any], Backbone]] = MappingProxyType(_BACKBONES)


def backbone(network: str) -> Callable[[type[Backbone]], type[Backbone]]:
    """Class decorator that files a backbone under the class name of the networks that it wraps."""

    def file(kind: type[Backbone]) -> type[Backbone]:
        _BACKBONES[network] = kind
        return kind

    return file


def wrap(network: nn.Module) -> Backbone:
    """A transformers vision model as a `Backbone`. Raises `UserError` for a class that none is known for."""
    name = type(network).__name__
    if name not in BACKBONES:
        known = ", ".join(sorted(BACKBONES))
        raise UserError(f"no way is known to select tokens in a {name}: use one of {known}, or a PlainBackbone")
    return BACKBONES[name](network)
