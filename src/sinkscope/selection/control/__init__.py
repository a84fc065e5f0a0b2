"""Which share of patches and which rate to send at, slot by slot, as the channel comes and goes."""

from sinkscope.selection.control.processes import PROCESSES, SnrProcess, find_process
from sinkscope.selection.control.processes.constant import Constant
from sinkscope.selection.control.processes.fading import BlockFading
from sinkscope.selection.control.processes.gaussian import Gaussian
from sinkscope.selection.control.rules import CONTROLLERS, Controller, find_controller
from sinkscope.selection.control.rules.drift_plus_penalty import DriftPlusPenalty
from sinkscope.selection.control.rules.fixed import Fixed
from sinkscope.selection.control.rules.oracle import Oracle
from sinkscope.selection.control.simulating import Simulation, simulate
from sinkscope.selection.control.table import OperatingPoint, OperatingTable
from sinkscope.selection.control.tuning import choose_v

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
