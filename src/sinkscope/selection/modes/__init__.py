"""How a budget is honoured: exactly, at most, or as published."""

from sinkscope.discovery import import_modules
from sinkscope.selection.modes.base import Asked, Kept, Mode
from sinkscope.selection.modes.registry import MODES, find_mode

import_modules(__path__, __name__)

__all__ = ["MODES", "Asked", "Kept", "Mode", "find_mode"]
