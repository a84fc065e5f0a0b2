"""Rayleigh block fading with memory: one coefficient h a slot, h <- a h + sqrt(1 - a^2) w, w ~ CN(0, 1).

|h|^2 is exponential with mean 1 in every slot, and its correlation from one slot to the next is a^2. `mean` is the SNR
at |h|^2 = 1, so the mean SNR as a ratio of powers; the mean of the decibels lies 2.5 dB below it.
"""

from dataclasses import dataclass

import numpy as np

from sinkscope.errors import UserError
from sinkscope.selection.control.processes.base import SnrProcess, check_decibels
from sinkscope.selection.control.processes.registry import process
from sinkscope.selection.control.table import Floats


@process("fading")
@dataclass(frozen=True)
class BlockFading(SnrProcess):
    """A channel that fades and comes back."""

    mean: float
    """In dB"""
    correlation: float = 0.0
    """Of the coefficient from slot to slot, a in [0, 1)"""

    def __post_init__(self) -> None:
        check_decibels("mean", self.mean)
        if not 0 <= self.correlation < 1:
            raise UserError(f"correlation must lie in [0, 1), from slot to slot; got {self.correlation:g}")

    def sample(self, slots: int, generator: np.random.Generator) -> Floats:
        drawn = generator.normal(scale=np.sqrt(0.5), size=(slots, 2)).view(np.complex128)[:, 0]
        fresh = np.sqrt(1 - self.correlation**2)
        coefficients = [complex(drawn[0])]
        for one in drawn[1:].tolist():
            coefficients.append(self.correlation * coefficients[-1] + fresh * one)
        decibels: Floats = 10 * np.log10(np.abs(coefficients) ** 2)
        return self.mean + decibels
