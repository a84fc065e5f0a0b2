"""Orders of keys: who is dropped first, ranks with ties, rank correlation.

Arrays are `(..., key)`; NaN means that there is no such key, and it takes part in nothing.

    spearman(attention, -norms)      # (...,): 1 where the key with the lowest norm receives most, and so on

Where it misleads: a rank correlation looks at all keys alike. One sink that holds most of the attention is one key of a
hundred to it; `losses.py` weighs keys by the attention that they hold.
"""

import numpy as np
from numpy.typing import NDArray

from sinkscope.compression.budgets import Budget
from sinkscope.errors import UserError

Floats = NDArray[np.float64]


def places(importance: NDArray[np.floating]) -> NDArray[np.int64]:
    """Place of every key from the most important (0) to the least, `(..., key)`; keys that are not there come last.

    Equally important keys are taken from the left, so that the same input gives the same order everywhere.
    """
    order = np.argsort(-importance, axis=-1, kind="stable")  # NaN goes last, after infinities too
    found = np.empty_like(order)
    np.put_along_axis(found, order, np.broadcast_to(np.arange(order.shape[-1]), order.shape), axis=-1)
    return found


def kept(importance: NDArray[np.floating], budget: Budget) -> NDArray[np.bool_]:
    """The most important keys, `(..., key)`, as many of those that are there as the budget says; ties go to the left.

    The same keys as `choosing.choose_kept` keeps.
    """
    there = ~np.isnan(importance)
    counts = np.array([budget.kept(keys, 0) for keys in range(importance.shape[-1] + 1)])
    stays: NDArray[np.bool_] = (places(importance) < counts[there.sum(-1, keepdims=True)]) & there
    return stays


def average_ranks(values: NDArray[np.floating]) -> Floats:
    """Ranks from 1 along the last axis, equal values sharing the mean of theirs; NaN stays NaN."""
    order = np.argsort(values, axis=-1, kind="stable")  # NaN goes last
    ordered = np.take_along_axis(values, order, axis=-1)
    place = np.broadcast_to(np.arange(values.shape[-1]), values.shape)
    differs = ordered[..., 1:] != ordered[..., :-1]
    edge = np.ones((*values.shape[:-1], 1), dtype=bool)
    first = np.maximum.accumulate(np.where(np.concatenate([edge, differs], -1), place, 0), axis=-1)
    ends = np.where(np.concatenate([differs, edge], -1), place, values.shape[-1])
    last = np.flip(np.minimum.accumulate(np.flip(ends, -1), axis=-1), -1)
    ranks = np.empty(values.shape, dtype=np.float64)
    np.put_along_axis(ranks, order, (first + last) / 2 + 1, axis=-1)
    ranks[np.isnan(values)] = np.nan
    return ranks


def standard_ranks(values: NDArray[np.floating]) -> Floats:
    """Average ranks moved to mean 0 and scaled to length 1, so that products are rank correlations; 0 without a key.

    NaN throughout for a row of fewer than two keys or of equal values, whose correlation with anything is undefined.
    """
    ranks = average_ranks(values)
    there = ~np.isnan(ranks)
    count = there.sum(-1, keepdims=True)
    ranks = np.where(there, ranks - (count + 1) / 2, 0.0)  # the mean of n ranks is (n + 1) / 2, ties or not
    length = np.sqrt((ranks**2).sum(-1, keepdims=True))
    scaled: Floats = np.divide(ranks, length, out=np.full_like(ranks, np.nan), where=length > 0)
    return scaled


def spearman(one: NDArray[np.floating], other: NDArray[np.floating]) -> Floats:
    """Spearman's rank correlation over the keys that both have, `(...,)`, with ties averaged.

    It is Pearson's correlation of the average ranks, which is right with ties too. NaN for fewer than two keys and
    where either holds one value only.
    """
    require_same_shape(one, other)
    absent = np.isnan(one) | np.isnan(other)
    left, right = (standard_ranks(np.where(absent, np.nan, values)) for values in (one, other))
    product: Floats = (left * right).sum(-1)
    return product


def require_same_shape(one: NDArray[np.generic], other: NDArray[np.generic]) -> None:
    """Raise `UserError` for arrays that do not go together, or have no axis of keys."""
    if one.shape != other.shape or not one.shape or not one.shape[-1]:
        raise UserError(f"two arrays (..., key) of the same shape are wanted, got {one.shape} and {other.shape}")
