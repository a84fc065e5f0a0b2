"""Pictures sent as files at the channel's capacity: what a transmission of tokens is compared with."""

from sinkscope.discovery import import_modules
from sinkscope.selection.digital.base import Digital
from sinkscope.selection.digital.capacity import capacity_bits
from sinkscope.selection.digital.jpeg import jpeg_at_capacity
from sinkscope.selection.digital.registry import DIGITAL, find_digital
from sinkscope.selection.digital.resized import resized_at_capacity

import_modules(__path__, __name__)

__all__ = ["DIGITAL", "Digital", "capacity_bits", "find_digital", "jpeg_at_capacity", "resized_at_capacity"]
