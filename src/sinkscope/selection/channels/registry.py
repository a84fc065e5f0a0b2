"""Channels by name. Every module of this folder is imported by the package, so a new channel is one new file."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from sinkscope.errors import UserError
from sinkscope.selection.channels.base import Channel

_CHANNELS: dict[str, type[Channel]] = {}

CHANNELS: Mapping[str, type[Channel]] = MappingProxyType(_CHANNELS)


def channel(name: str) -> Callable[[type], type]:
    """Class decorator that gives a channel its name and files it in `CHANNELS`."""

    def file(kind: type[Channel]) -> type[Channel]:
        kind.name = name
        _CHANNELS[name] = kind
        return kind

    return file


def find_channel(name: str, **settings: Any) -> Channel:
    """The channel called `name`. Raises `UserError` for an unknown name, and for what the channel refuses."""
    if name not in CHANNELS:
        raise UserError(f"unknown channel {name!r}: use one of {', '.join(sorted(CHANNELS))}")
    return CHANNELS[name](**settings)
