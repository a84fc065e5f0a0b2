"""Decibels drawn from a normal distribution, every slot anew: the channel of arXiv 2505.17604."""

import math
from dataclasses import dataclass

import numpy as np

from sinkscope.errors import UserError
from sinkscope.selection.control.processes.base import SnrProcess, check_decibels
from sinkscope.selection.control.processes.registry import process
from sinkscope.selection.control.table import Floats


@process("gaussian")
@dataclass(frozen=True)
class Gaussian(SnrProcess):
    """Shadowing without memory."""

    mean: float
    """In dB"""
    std: float
    """In dB"""

    def __post_init__(self) -> None:
        check_decibels("mean", self.mean)
        if not 0 <= self.std < math.inf:
            raise UserError(f"std must be a number of decibels that is not negative; got {self.std:g}")

    def sample(self, slots: int, generator: np.random.Generator) -> Floats:
        return generator.normal(self.mean, self.std, slots)
