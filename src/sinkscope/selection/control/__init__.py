"""Which share of patches and which rate to send at, slot by slot, as the channel comes and goes."""

from sinkscope.selection.control.processes import PROCESSES, BlockFading, Constant, Gaussian, SnrProcess, find_process
from sinkscope.selection.control.rules import CONTROLLERS, Controller, DriftPlusPenalty, Fixed, Oracle, find_controller
from sinkscope.selection.control.simulating import Simulation, choose_v, simulate
from sinkscope.selection.control.table import OperatingPoint, OperatingTable

__all__ = [
    "CONTROLLERS",
    "PROCESSES",
    "BlockFading",
    "Constant",
    "Controller",
    "DriftPlusPenalty",
    "Fixed",
    "Gaussian",
    "OperatingPoint",
    "OperatingTable",
    "Oracle",
    "Simulation",
    "SnrProcess",
    "choose_v",
    "find_controller",
    "find_process",
    "simulate",
]
