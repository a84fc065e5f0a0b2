"""What an SNR process is: one number of decibels for every slot, the same again for the same seed."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np

from sinkscope.errors import UserError
from sinkscope.selection.control.table import Floats


class SnrProcess(ABC):
    """One way to vary. A new one is a new file in this folder."""

    name: ClassVar[str]

    @abstractmethod
    def sample(self, slots: int, generator: np.random.Generator) -> Floats:
        """(slot,) in dB."""

    def draw(self, slots: int, seed: int) -> Floats:
        """(slot,) in dB. Raises `UserError` for no slots."""
        if slots < 1:
            raise UserError(f"slots must be at least 1; got {slots}")
        return self.sample(slots, np.random.default_rng(seed))


def check_decibels(name: str, value: float) -> None:
    """Raise `UserError` unless it is a finite number."""
    if not math.isfinite(value):
        raise UserError(f"{name} must be a finite number of decibels; got {value:g}")
