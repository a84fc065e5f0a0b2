"""Ways in which the SNR varies from slot to slot: one number of decibels for every slot, the same again for a seed.

    BlockFading(mean=5, correlation=0.9).draw(10_000, seed=0)       # (slot,) in dB

`constant` stands still. `gaussian` draws decibels from a normal distribution, every slot anew: the channel of arXiv
2505.17604. `fading` is Rayleigh block fading with memory: one coefficient h a slot, h <- a h + sqrt(1 - a^2) w, w ~
CN(0, 1). Then |h|^2 is exponential with mean 1 in every slot, and its correlation from one slot to the next is a^2.
`mean` is the SNR at |h|^2 = 1, so the mean SNR as a ratio of powers; the mean of the decibels lies 2.5 dB below it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from sinkscope.discovery import Register
from sinkscope.errors import UserError
from sinkscope.selection.control.table import Floats

_REGISTER: Register[SnrProcess] = Register("SNR process")
PROCESSES, process = _REGISTER.kinds, _REGISTER.file


def find_process(name: str, **settings: Any) -> SnrProcess:
    """The process called `name`. Raises `UserError` for an unknown name, and for what the process refuses."""
    return _REGISTER.find(name)(**settings)


class SnrProcess(ABC):
    name: ClassVar[str]

    @abstractmethod
    def sample(self, slots: int, generator: np.random.Generator) -> Floats:
        """(slot,) in dB."""

    def draw(self, slots: int, seed: int) -> Floats:
        """(slot,) in dB. Raises `UserError` for no slots."""
        if slots < 1:
            raise UserError(f"slots must be at least 1; got {slots}")
        return self.sample(slots, np.random.default_rng(seed))


@process("constant")
@dataclass(frozen=True)
class Constant(SnrProcess):
    snr: float
    """In dB; inf is no noise"""

    def __post_init__(self) -> None:
        if math.isnan(self.snr) or self.snr == -math.inf:
            raise UserError(f"snr must be a number of decibels, or inf for no noise; got {self.snr:g}")

    def sample(self, slots: int, generator: np.random.Generator) -> Floats:
        del generator
        return np.full(slots, float(self.snr))


@process("fading")
@dataclass(frozen=True)
class BlockFading(SnrProcess):
    mean: float
    """In dB"""
    correlation: float = 0.0
    """Of the coefficient from slot to slot, a in [0, 1)"""

    def __post_init__(self) -> None:
        _check_mean(self.mean)
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


@process("gaussian")
@dataclass(frozen=True)
class Gaussian(SnrProcess):
    mean: float
    """In dB"""
    std: float
    """In dB"""

    def __post_init__(self) -> None:
        _check_mean(self.mean)
        if not 0 <= self.std < math.inf:
            raise UserError(f"std must be a number of decibels that is not negative; got {self.std:g}")

    def sample(self, slots: int, generator: np.random.Generator) -> Floats:
        return generator.normal(self.mean, self.std, slots)


def _check_mean(mean: float) -> None:
    if not math.isfinite(mean):
        raise UserError(f"mean must be a finite number of decibels; got {mean:g}")
