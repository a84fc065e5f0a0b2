"""The same SNR in every slot."""

import math
from dataclasses import dataclass

import numpy as np

from sinkscope.errors import UserError
from sinkscope.selection.control.processes.base import SnrProcess
from sinkscope.selection.control.processes.registry import process
from sinkscope.selection.control.table import Floats


@process("constant")
@dataclass(frozen=True)
class Constant(SnrProcess):
    """A channel that stands still."""

    snr: float
    """In dB; inf is no noise"""

    def __post_init__(self) -> None:
        if math.isnan(self.snr) or self.snr == -math.inf:
            raise UserError(f"snr must be a number of decibels, or inf for no noise; got {self.snr:g}")

    def sample(self, slots: int, generator: np.random.Generator) -> Floats:
        del generator
        return np.full(slots, float(self.snr))
