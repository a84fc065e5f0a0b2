"""Vision transformers that tokens can be selected in."""

from sinkscope.discovery import import_modules
from sinkscope.selection.backbones.base import Backbone
from sinkscope.selection.backbones.plain import PlainBackbone
from sinkscope.selection.backbones.registry import BACKBONES, wrap

import_modules(__path__, __name__)

__all__ = ["BACKBONES", "Backbone", "PlainBackbone", "wrap"]
