"""Digital baselines by name. Every module of this folder is imported by the package, so a new one is one new file."""

from sinkscope.discovery import Names
from sinkscope.selection.digital.base import Baseline

DIGITAL: Names[Baseline] = Names("digital baseline")
baseline, find_digital = DIGITAL.file, DIGITAL.find
