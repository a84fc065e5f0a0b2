"""Channels between camera and server."""

from sinkscope.discovery import import_modules
from sinkscope.selection.channels.base import Channel, Received, noise_variance
from sinkscope.selection.channels.registry import CHANNELS, find_channel
from sinkscope.selection.channels.sionna import seed_channels

import_modules(__path__, __name__)

__all__ = ["CHANNELS", "Channel", "Received", "find_channel", "noise_variance", "seed_channels"]
