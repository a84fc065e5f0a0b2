"""Orders of keys: who is dropped first, rank correlation, attention loss, and what random orders give.

    spearman(attention, -norms)            # (...,): 1 where the key with the lowest norm receives most, and so on
    attention_loss(attention, -norms)      # (...,): ALR of dropping the highest norms first
    expected_jaccard((9, 9), (5, 5), 9)    # overlap of two random choices

Arrays are `(..., key)`; NaN means that there is no such key, and it takes part in nothing.

Attention loss is how much attention is lost when keys are dropped in a given order (Devoto et al., 2406.11430). With a
the attention over n keys, D_m the m keys that are dropped first and R_m the m keys with the least attention,

    L^m = sum_{D_m} a      Y^m = L^m - sum_{R_m} a >= 0      ALR = sum_{m=1..n} Y^m            (Eq. 5 to 7)

A key that stands at place p from the top of the order (0 is dropped last) is lost for p + 1 of the n values of m, so no
loop over m is needed. A random order puts every key at every place equally often and loses (n + 1) / 2 times the sum of
a on average: the loss of a random order is known exactly. ALR grows with n; divided by that of a random order it is

    0 for the order of the attention itself, 1 for a random order, above 1 for worse than random,

and does not change when a is multiplied by a number: attention over some of the keys only need not add up to 1.

Where it misleads: a rank correlation looks at all keys alike. One sink that holds most of the attention is one key of a
hundred to it; losses weigh keys by the attention that they hold. But a loss is a sum over all m. An order can lose
little on the whole and yet drop the one key that holds most at a mild ratio. Where all keys receive alike there is
nothing to lose, and the ratio is NaN.
"""

from functools import cache
from math import comb

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from sinkscope.compression.budgets import Budget
from sinkscope.errors import UserError
from sinkscope.intervals import Floats


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


@cache
def hypergeometric(keys: int, marked: int, drawn: int) -> dict[int, float]:
    """Exact probability of every number of marked keys among those drawn from `keys` without putting back."""
    ways = comb(keys, drawn)
    least, most = max(0, drawn + marked - keys), min(marked, drawn)
    return {hits: comb(marked, hits) * comb(keys - marked, drawn - hits) / ways for hits in range(least, most + 1)}


@cache
def expected_jaccard(keys: tuple[int, int], kept: tuple[int, int], shared: int) -> float:
    """Expected overlap (common to both over in either) of two independent random choices.

    keys: how many each choice is made from. kept: how many each keeps. shared: keys that both could choose. NaN where
    neither keeps any.
    """
    if not sum(kept):
        return float("nan")
    expected = 0.0
    for reachable, likely in hypergeometric(keys[0], shared, kept[0]).items():  # of the first choice, within reach
        for common, also in hypergeometric(keys[1], reachable, kept[1]).items():
            expected += likely * also * common / (sum(kept) - common)
    return expected


def random_correlations(attention: xr.DataArray, draws: int, seed: int) -> xr.DataArray:
    """Sums over steps and heads of rank correlations with random orders, `(draw, layer)`: the control of a correlation.

    A row of n keys and a random order correlate by 0 on average, with the standard deviation 1 / sqrt(n - 1). A mean
    over steps does not narrow as that of independent rows would, because the same keys with much the same attention
    come again at every step. So orders are drawn for the keys, as norms belong to keys, and each draw is followed
    through the steps.

    Where it misleads: layers share their draws, so differences between layers can't be judged by it. Norms of
    neighbouring keys may be alike where random numbers are not.

    attention: `(step, layer, kv_head, position)`, NaN where a key is not looked at, at the same places in all layers
    and heads. Rows without a correlation (fewer than two keys, equal values) add nothing.
    """
    values = attention.transpose("step", "layer", "kv_head", "position").values
    _, layers, heads, positions = values.shape
    drawn = np.random.default_rng(seed).random((draws, heads, positions))
    total = np.zeros((draws, layers))
    last: NDArray[np.bool_] | None = None
    orders: Floats = drawn
    for step in values:
        there = ~np.isnan(step[0, 0])
        if last is None or bool((there != last).any()):
            orders, last = np.nan_to_num(standard_ranks(np.where(there, drawn, np.nan))), there
        rows = np.nan_to_num(standard_ranks(step))
        total += np.einsum("dhp,lhp->dl", orders, rows, optimize=True)
    return xr.DataArray(total, dims=("draw", "layer"), coords={"layer": attention["layer"].values})
