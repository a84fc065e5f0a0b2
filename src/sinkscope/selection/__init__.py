"""Budgeted token selection in vision transformers, sent over a noisy channel (METHODS section 4)."""

from sinkscope.selection.backbones import BACKBONES, Backbone, PlainBackbone, wrap
from sinkscope.selection.channels import CHANNELS, Channel, find_channel, seed_channels
from sinkscope.selection.link import Link
from sinkscope.selection.merging import merge_alike
from sinkscope.selection.model import Picked, SelectiveViT
from sinkscope.selection.modes import MODES
from sinkscope.selection.relaxing import Relaxed, relaxed_pass
from sinkscope.selection.selectors import SELECTORS, Selector, find_selector

__all__ = [
    "BACKBONES",
    "CHANNELS",
    "MODES",
    "SELECTORS",
    "Backbone",
    "Channel",
    "Link",
    "Picked",
    "PlainBackbone",
    "Relaxed",
    "SelectiveViT",
    "Selector",
    "find_channel",
    "find_selector",
    "merge_alike",
    "relaxed_pass",
    "seed_channels",
    "wrap",
]
