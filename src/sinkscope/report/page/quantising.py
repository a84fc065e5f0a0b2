"""Received attention as one byte a number: the logarithm in equal steps, with the error of it known.

    scale = fair_scale(positions=165)
    codes = scale.encode(received)                 # uint8, the shape of `received`
    scale.decode(codes)

A share of attention means something relative to a fair share, 1 / n, and spans many powers of ten. So the codes 1 to
254 are spread evenly over the logarithm from a hundredth of a fair share to 1; code 0 is exactly nothing, code 255 says
that there is no key. With 165 positions the relative error is at most 2 %.

A rule that counts whatever lies above some amount counts whole codes: all that a code stands for, or nothing. Where the
amount lies inside a code's span, the count is off by up to half of those that have this code (about 5 % of all sinks,
measured). So the codes are laid such that the most asked rule, excess with epsilon 3 on scale "sum", cuts between two
of them: with every key there, it finds in the codes what it finds in the trace.

Where it misleads: what lies below a hundredth of a fair share counts as that much, so many such keys together weigh up
to 1 % too much; keys that differ by less than the error tie.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from sinkscope.sinks import Excess

ZERO = 0
MISSING = 255
MOST_CODES = 254
SMALLEST = 0.01
"""Of a fair share; below it amounts are not told apart."""

Codes = NDArray[np.uint8]


@dataclass(frozen=True)
class LogScale:
    """Values `low` to `high` in `codes` steps of equal ratio, as the codes 1 to `codes`; at least 2."""

    low: float
    high: float
    codes: int = MOST_CODES

    @property
    def bound(self) -> float:
        """Largest relative error of a value between `low` and `high`: half a step."""
        return float((self.high / self.low) ** (0.5 / (self.codes - 1))) - 1

    @cached_property
    def table(self) -> NDArray[np.float64]:
        """The share that each of the 256 codes stands for, at most 1, NaN for those that stand for none."""
        values = np.full(256, np.nan)
        values[ZERO] = 0.0
        steps = np.arange(self.codes) / (self.codes - 1)
        values[1 : self.codes + 1] = np.minimum(self.low * (self.high / self.low) ** steps, 1.0)
        return values

    def encode(self, values: NDArray[np.floating]) -> Codes:
        """The nearest code (by ratio) of each value, in the shape of `values`; NaN is `MISSING`.

        Positive values outside the scale get its first or last code. Worked out in the type of `values`, float32 at
        least.
        """
        known = values.astype(np.result_type(values.dtype, np.float32), copy=False)
        with np.errstate(divide="ignore", invalid="ignore"):
            places = np.log(known / known.dtype.type(self.low))
        places *= (self.codes - 1) / np.log(self.high / self.low)
        places = np.clip(np.rint(places, out=places), 0, self.codes - 1, out=places) + 1
        places[known <= 0] = ZERO
        places[np.isnan(known)] = MISSING
        codes: Codes = places.astype(np.uint8)
        return codes

    def decode(self, codes: Codes) -> NDArray[np.float64]:
        """The value of each code; `MISSING` is NaN."""
        decoded: NDArray[np.float64] = self.table[codes]
        return decoded

    def worst_error(self, values: NDArray[np.floating], codes: Codes) -> float:
        """The largest relative error among those of the values that are at least `low`; 0 where there are none."""
        known = values.astype(np.result_type(values.dtype, np.float32), copy=False)
        errors = np.abs(self.table.astype(known.dtype)[codes] / np.maximum(known, self.low) - 1)
        return float(np.max(errors, where=known >= self.low, initial=0.0))


def fair_scale(positions: int, codes: int = MOST_CODES) -> LogScale:
    """The scale for shares among so many positions: from a hundredth of a fair share to everything.

    Moved up, by less than a step, to where the excess rule's threshold lies halfway between two codes.
    """
    low = SMALLEST / positions
    step = -np.log(low) / (codes - 1)
    # Excess on scale "sum" with all attention on n keys, solved for the share: above (1 + epsilon (n - 1) / n) / n.
    threshold = (1 + Excess().epsilon * (positions - 1) / positions) / positions
    moved = np.exp(step * ((np.log(threshold / low) / step - 0.5) % 1))
    return LogScale(float(low * moved), float(moved), codes)
