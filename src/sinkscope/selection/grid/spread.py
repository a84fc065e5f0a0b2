"""How far apart models are that differ in their seed alone.

The interval is Student's for the mean of the models, m +- t s / sqrt(k), at 95 %; it is given from three models on.
With so few it is wide, and it holds that their scores scatter normally. It says how another training would come out,
where intervals over pictures say how other pictures would.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import cos, pi, sin, sqrt
from statistics import fmean, stdev

from sinkscope.errors import UserError

LEAST = 3
"""Models that an interval takes."""
_HALVINGS = 200


@dataclass(frozen=True)
class Spread:
    """Of one number a model."""

    mean: float
    lowest: float
    highest: float
    interval: tuple[float, float] | None
    """None for fewer than `LEAST` models"""


def spread(values: Sequence[float]) -> Spread:
    """Of at least one number."""
    mean, interval = fmean(values), None
    if len(values) >= LEAST:
        reach = student_quantile(len(values) - 1) * stdev(values) / sqrt(len(values))
        interval = (mean - reach, mean + reach)
    return Spread(mean, min(values), max(values), interval)


def student_quantile(freedom: int, confidence: float = 0.95) -> float:
    """t such that Student's distribution of so many degrees of freedom has `confidence` of its mass within -t to t.

    By halving the angle in the finite sums for whole degrees of freedom: M. Abramowitz and I. A. Stegun, Handbook of
    Mathematical Functions (1964), 26.7.3 and 26.7.4. Raises `UserError` for what is no number of degrees, and a
    confidence that is not between 0 and 1.
    """
    if freedom < 1 or not 0 < confidence < 1:
        raise UserError(f"freedom must be at least 1 and confidence between 0 and 1, got {freedom} and {confidence:g}")
    low, high = 0.0, pi / 2
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < confidence else (low, middle)
    return sin(low) / cos(low) * sqrt(freedom)


def _within(angle: float, freedom: int) -> float:
    """The mass between -t and t, for the angle atan(t / sqrt(freedom))."""
    odd = freedom % 2
    term = cos(angle) if odd else 1.0
    total = 0.0
    for power in range(1 + odd, freedom, 2):
        total += term
        term *= cos(angle) ** 2 * power / (power + 1)
    return 2 / pi * (angle + sin(angle) * total) if odd else sin(angle) * total
