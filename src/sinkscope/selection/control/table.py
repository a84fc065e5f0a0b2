"""What a controller knows: the accuracy and the rate of every (alpha, r) it may choose, measured beforehand.

    table = OperatingTable(alphas=(0.1, 0.5), rates=(0.1,), snrs=(-10, 0, 10), accuracy=..., rho=...,
    split="validation") table.accuracy_at([3.5])              # (slot, point)

Between two measured SNRs the accuracy is interpolated linearly in decibels; beyond the last ones it is held. Taking the
nearest measured SNR instead, as the published code does, makes the accuracy jump half-way between two of them, by tens
of points where it falls steeply (METHODS section 4), and so a choice hang on hundredths of a decibel.
A table may have a column for no noise at all, SNR inf: it serves infinity alone.

Where it misleads: the numbers are means over pictures. In the modes "soft" and "up-to" a picture may send more or less
than rho, and a slot is right or wrong, not right to 80 %. A table of the pictures that the gates were trained on
promises too much; one of the test pictures makes the comparison on them worthless, and is refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, product
from typing import Any

import numpy as np
import numpy.typing as npt

from sinkscope.errors import UserError
from sinkscope.selection.budgets import check_alpha
from sinkscope.selection.link import check_rate

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.intp]

_TEST = re.compile(r"(^\s*|, )test\b", re.IGNORECASE)
"""In the name of a split: "test", or "digits, test (20%)" as the parts of a data set are called"""
_STORED = ("split", "alphas", "rates", "snrs", "accuracy", "rho")
_ARRAYS = {"accuracy": 3, "rho": 2, "latency": 1}
"""How many of the axes (alpha, rate, snr) each has"""


@dataclass(frozen=True, order=True)
class OperatingPoint:
    """What can be set for a slot."""

    alpha: float
    """Share of patches, in (0, 1]"""
    rate: float
    """Complex symbols a token over its width, in (0, 1]"""


@dataclass(frozen=True, eq=False, kw_only=True)
class OperatingTable:
    """Measurements on a grid of alpha, rate and SNR. Raises `UserError` for numbers out of range."""

    alphas: tuple[float, ...]
    """Ascending shares of patches"""
    rates: tuple[float, ...]
    """Ascending rates of the codec"""
    snrs: tuple[float, ...]
    """Ascending, in dB; the last may be inf"""
    accuracy: Floats
    """(alpha, rate, snr) in [0, 1]"""
    rho: Floats
    """(alpha, rate): complex symbols sent over the numbers of a picture, mean over pictures"""
    split: str
    """Name of the data that the accuracies were measured on"""
    latency: Floats | None = None
    """(alpha,) seconds for one picture, both sides together"""

    def __post_init__(self) -> None:
        if not isinstance(self.split, str) or not self.split.strip() or _TEST.search(self.split):
            raise UserError(
                f"an operating table must be measured on a validation split, or the test accuracy of what it controls "
                f"means nothing; got the split {self.split!r}"
            )
        for name in ("alphas", "rates", "snrs"):
            object.__setattr__(self, name, _axis(name, getattr(self, name)))
        shape = (len(self.alphas), len(self.rates), len(self.snrs))
        for name, axes in _ARRAYS.items():
            if name != "latency" or self.latency is not None:
                object.__setattr__(self, name, _array(name, getattr(self, name), shape[:axes]))
        check_alpha(self.alphas)
        for rate in self.rates:
            check_rate(rate)
        if not math.isfinite(self.snrs[0]):
            raise UserError(f"snrs of an operating table must begin with a finite number of decibels; got {self.snrs}")
        if not ((self.accuracy >= 0) & (self.accuracy <= 1)).all():
            raise UserError("accuracy of an operating table must lie in [0, 1]: divide percentages by 100")
        for name, values in (("rho", self.rho), ("latency", self.latency)):
            if values is not None and not ((values > 0) & np.isfinite(values)).all():
                raise UserError(f"{name} of an operating table must be positive numbers; got {_short(values.tolist())}")

    @cached_property
    def points(self) -> tuple[OperatingPoint, ...]:
        """Everything that can be chosen, in the order of `rhos` and of the columns of `accuracy_at`."""
        return tuple(OperatingPoint(alpha, rate) for alpha, rate in product(self.alphas, self.rates))

    @property
    def rhos(self) -> Floats:
        """(point,) mean rate of each."""
        return self.rho.reshape(-1)

    @property
    def latencies(self) -> Floats | None:
        """(point,) seconds of each, where they were measured."""
        return None if self.latency is None else self.latency.repeat(len(self.rates))

    def accuracy_at(self, snrs: npt.ArrayLike) -> Floats:
        """(slot, point) accuracies at SNRs in dB, (slot,). Raises `UserError` for NaN and minus infinity."""
        asked, measured = check_snrs(snrs), np.array(self.snrs)
        columns = self.accuracy.reshape(-1, len(measured))
        noisy = np.isfinite(measured)
        # For an infinite SNR np.interp gives its last column: right unless one was measured without noise.
        found = np.stack([np.interp(asked, measured[noisy], column[noisy]) for column in columns], axis=1)
        if not noisy[-1]:
            found[np.isinf(asked)] = columns[:, -1]
        return found

    def to_dict(self) -> dict[str, Any]:
        """Plain values that JSON can hold; infinity is the word "inf"."""
        plain: dict[str, Any] = {name: getattr(self, name) for name in (*_STORED, "latency")}
        plain |= {name: list(plain[name]) for name in ("alphas", "rates")}
        plain["snrs"] = [snr if math.isfinite(snr) else "inf" for snr in self.snrs]
        return plain | {name: plain[name].tolist() for name in _ARRAYS if plain[name] is not None}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> OperatingTable:
        """The table again. Raises `UserError` for a dictionary that holds none."""
        missing = [name for name in _STORED if name not in stored]
        if missing:
            raise UserError(f"an operating table has the entries {', '.join(_STORED)}; missing: {', '.join(missing)}")
        return cls(**{name: stored[name] for name in _STORED}, latency=stored.get("latency"))


def check_snrs(snrs: npt.ArrayLike) -> Floats:
    """(slot,) SNRs in dB, inf for no noise. Raises `UserError` for none, NaN and minus infinity."""
    given = np.asarray(snrs, dtype=np.float64)
    if given.ndim != 1 or not len(given) or np.isnan(given).any() or np.isneginf(given).any():
        raise UserError(f"snrs must be one number of decibels for each slot, inf for no noise; got {_short(snrs)}")
    return given


def _array(name: str, values: Any, shape: tuple[int, ...]) -> Floats:
    """A copy that cannot be written to."""
    try:
        array = np.array(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise UserError(f"{name} of an operating table must be {shape} numbers; got {_short(values)}") from error
    if array.shape != shape:
        raise UserError(f"{name} of an operating table must have the shape {shape}; got {array.shape}")
    array.flags.writeable = False
    return array


def _axis(name: str, values: Any) -> tuple[float, ...]:
    try:
        numbers = tuple(float(value) for value in values)
    except (TypeError, ValueError) as error:
        raise UserError(f"{name} of an operating table must be numbers; got {_short(values)}") from error
    if not numbers or not all(low < high for low, high in pairwise(numbers)):
        raise UserError(f"{name} of an operating table must be one or more numbers in ascending order; got {numbers}")
    return numbers


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
