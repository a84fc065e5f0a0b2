"""Rules that choose a share and a rate for every slot."""

from sinkscope.discovery import import_modules
from sinkscope.selection.control.rules.base import Controller, virtual_queue
from sinkscope.selection.control.rules.registry import CONTROLLERS, find_controller

import_modules(__path__, __name__)

__all__ = ["CONTROLLERS", "Controller", "find_controller", "virtual_queue"]
