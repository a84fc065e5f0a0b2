"""Ways in which the SNR varies from slot to slot."""

from sinkscope.discovery import import_modules
from sinkscope.selection.control.processes.base import SnrProcess
from sinkscope.selection.control.processes.registry import PROCESSES, find_process

import_modules(__path__, __name__)

__all__ = ["PROCESSES", "SnrProcess", "find_process"]
