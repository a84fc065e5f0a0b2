"""Attention loss: how much attention is lost when keys are dropped in a given order (Devoto et al., 2406.11430).

With a the attention over n keys, D_m the m keys that are dropped first and R_m the m keys with the least attention,

    L^m = sum_{D_m} a      Y^m = L^m - sum_{R_m} a >= 0      ALR = sum_{m=1..n} Y^m            (Eq. 5 to 7)

A key that stands at place p from the top of the order (0 is dropped last) is lost for p + 1 of the n values of m, so no
loop over m is needed. A random order puts every key at every place equally often and loses (n + 1) / 2 times the sum of
a on average: the loss of a random order is known exactly. ALR grows with n; divided by that of a random order it is

    0 for the order of the attention itself, 1 for a random order, above 1 for worse than random,

and does not change when a is multiplied by a number: attention over some of the keys only need not add up to 1.

Where it misleads: a sum over all m. An order can lose little on the whole and yet drop the one key that holds most at a
mild ratio. Where all keys receive alike there is nothing to lose, and the ratio is NaN.
"""

import numpy as np
from numpy.typing import NDArray

from sinkscope.compression.diagnostics.ranks import Floats, places, require_same_shape
from sinkscope.errors import UserError


def attention_loss(attention: NDArray[np.floating], importance: NDArray[np.floating]) -> Floats:
    """ALR `(...,)` of dropping keys from the least important on, with `attention` and `importance` `(..., key)`.

    NaN in `attention` means that there is no such key. Among equally important keys the right one goes first. NaN for a
    row without any key. Raises `UserError` for shapes that differ and for a key that has attention but no importance.
    """
    require_same_shape(attention, importance)
    there = ~np.isnan(attention)
    if bool((there & np.isnan(importance)).any()):
        raise UserError("a key that receives attention has no importance (NaN): give every key that is there a number")
    lost = _summed_losses(attention, np.where(there, importance, np.nan))
    return np.where(there.any(-1), lost - _summed_losses(attention, attention), np.nan)


def random_loss(attention: NDArray[np.floating]) -> Floats:
    """Expected ALR of a random order, `(...,)`, exact: `(n + 1) / 2 * sum(a)` minus the loss of the ideal order."""
    there = ~np.isnan(attention)
    keys = there.sum(-1)
    lost = (keys + 1) / 2 * np.nansum(attention, axis=-1, dtype=np.float64)
    return np.where(keys > 0, lost - _summed_losses(attention, attention), np.nan)


def relative_loss(attention: NDArray[np.floating], importance: NDArray[np.floating]) -> Floats:
    """ALR divided by that of a random order, `(...,)`; NaN where all keys receive alike, one key among them."""
    return over_random(attention_loss(attention, importance), attention)


def over_random(loss: Floats, attention: NDArray[np.floating]) -> Floats:
    """A loss `(...,)` divided by that of a random order over the same `attention` `(..., key)`."""
    expected = random_loss(attention)
    # What rounding leaves of a difference of nothing is nothing.
    size = np.finfo(np.float64).eps * attention.shape[-1] ** 2 * np.nansum(attention, axis=-1, dtype=np.float64)
    return np.divide(loss, expected, out=np.full_like(loss, np.nan), where=expected > size)


def _summed_losses(attention: NDArray[np.floating], importance: NDArray[np.floating]) -> Floats:
    """The sum of L^m over all m."""
    lost: Floats = np.nansum(attention * (places(importance) + 1.0), axis=-1, dtype=np.float64)
    return lost
