"""Controls, each a small class: which keys are masked in place of the sinks."""

from sinkscope.discovery import import_modules
from sinkscope.interventions.controls.base import Control, Situation
from sinkscope.interventions.controls.registry import CONTROLS, find_control

import_modules(__path__, __name__)

__all__ = ["CONTROLS", "Control", "Situation", "find_control"]
