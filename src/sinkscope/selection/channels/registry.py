"""Channels by name. Every module of this folder is imported by the package, so a new channel is one new file."""

from typing import Any

from sinkscope.discovery import Register
from sinkscope.selection.channels.base import Channel

_REGISTER: Register[Channel] = Register("channel")

CHANNELS = _REGISTER.kinds
channel = _REGISTER.file


def find_channel(name: str, **settings: Any) -> Channel:
    """The channel called `name`. Raises `UserError` for an unknown name, and for what the channel refuses."""
    return _REGISTER.find(name)(**settings)
