"""Which bits of attention a large trace can do without: those that no rule could tell.

    rounded(received)                  # (..., position) float32, the same but for bits that decide nothing

Every rule compares within a row: with the row's mean (the fair share), with a limit above it, or with the row's
highest. So a number keeps all its 24 bits where it is at least twice the fair share, among the row's `TOP` highest, or
next to the fair share; `ABOVE` bits between once and twice the fair share; `BELOW` bits below. What rounding takes from
a row is given back to one of its small numbers, so the row's sum, and with it the fair share, stays. Bits that are zero
compress to nothing, and the result is an ordinary float32 array.

Where it misleads: a limit *below* the fair share, or the order of keys that receive less than it, is decided
to 12 bits.
"""

import numpy as np
from numpy.typing import NDArray

TOP = 8
"""So many of a row's highest numbers are never rounded."""
ABOVE = 16
BELOW = 12
"""Significant bits of numbers from the fair share up, and below it."""
NEAR = 2.0**-10
"""Numbers that differ from the fair share by this share of it are not rounded. It is more than rounding moves any."""


def rounded(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Attention `(..., position)` with its deciding numbers and row sums kept; NaN, where no key is, stays NaN."""
    if values.shape[-1] <= TOP:
        return values
    missing = np.isnan(values)
    known = np.where(missing, np.float32(0), values)
    keys = np.maximum(1, (~missing).sum(-1, keepdims=True))
    fair = (known.sum(-1, keepdims=True, dtype=np.float64) / keys).astype(np.float32)
    top = np.partition(known, -TOP, axis=-1)[..., -TOP, None]
    kept = (known >= 2 * fair) | (known >= top) | (abs(known - fair) <= np.float32(NEAR) * fair)
    result = np.where(kept, known, np.where(known >= fair, _to_bits(known, ABOVE), _to_bits(known, BELOW)))
    _give_back(known, result, fair, missing)
    return np.where(missing, np.float32(np.nan), result)


def _to_bits(values: NDArray[np.float32], bits: int) -> NDArray[np.float32]:
    """The nearest numbers of so many significant bits, ties to even; values of at least 0."""
    drop = np.uint32(24 - bits)
    whole = values.view(np.uint32)
    last = (whole >> drop) & np.uint32(1)
    result: NDArray[np.float32] = ((whole + np.uint32((1 << (24 - bits - 1)) - 1) + last) >> drop << drop).view(
        np.float32
    )
    return result


def _give_back(
    exact: NDArray[np.float32], result: NDArray[np.float32], fair: NDArray[np.float32], missing: NDArray[np.bool_]
) -> None:
    """Add what a row lost to its highest number below half the fair share, where it can't cross that; in place."""
    lost = (exact.astype(np.float64) - result).sum(-1, keepdims=True)
    at = np.where(missing | (result >= fair / 2), np.float32(-1), result).argmax(-1, keepdims=True)
    # A row of nothing but numbers above half the fair share has a lowest one, or has lost nothing.
    lowest = np.where(missing, np.float32(np.inf), result).argmin(-1, keepdims=True)
    at = np.where(np.take_along_axis(result, at, -1) < fair / 2, at, lowest)
    taker = np.take_along_axis(result, at, -1)
    np.put_along_axis(result, at, np.maximum(0, taker + lost).astype(np.float32), -1)
