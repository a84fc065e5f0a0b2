"""Interventions: mask sinks, or controls in their place, while a model generates; functions of one's own.

`MaskSinks` goes into `generate`, `record` and every evaluation as `intervention=`, `Hooks` into the first two.
"""

from sinkscope.interventions.controls import CONTROLS, Control, Situation
from sinkscope.interventions.hooks import Hooks
from sinkscope.interventions.masking import DETECT, DETECT_FROM, HOW, MaskSinks, read_keys
from sinkscope.interventions.reference import Reference

__all__ = [
    "CONTROLS",
    "DETECT",
    "DETECT_FROM",
    "HOW",
    "Control",
    "Hooks",
    "MaskSinks",
    "Reference",
    "Situation",
    "read_keys",
]
