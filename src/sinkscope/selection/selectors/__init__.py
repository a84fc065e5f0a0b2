"""Ways to tell which patches matter."""

from sinkscope.discovery import import_modules
from sinkscope.selection.selectors.base import AtGate, Seen, Selector
from sinkscope.selection.selectors.registry import SELECTORS, find_selector

import_modules(__path__, __name__)

__all__ = ["SELECTORS", "AtGate", "Seen", "Selector", "find_selector"]
