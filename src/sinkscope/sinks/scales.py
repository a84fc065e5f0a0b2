"""The three scales on which received attention is quoted, and how many keys a row has.

Received attention r is a mean over queries, so it sums to 1 over the keys that exist. With n existing keys:

| scale     | score   | a key that gets its fair share scores |
|-----------|---------|---------------------------------------|
| `sum`     | n r     | 1                                     |
| `percent` | 100 r   | 100 / n                               |
| `mean`    | r       | 1 / n                                 |

n counts existing keys, not queries: in a pass over a block cache fewer rows are fed than there are keys, and in an
autoregressive model keys are still missing (NaN). All layers and heads have the same keys, unless a cache dropped some
or a sliding window forgot them: then n is that of the row, its layer and head.

Where layers differ in their number of heads, the heads that a layer lacks are rows without any key, and count nowhere;
the coordinate `layer_heads` says how many each has.
"""

from collections.abc import Collection, Hashable
from typing import Any, Literal, TypeVar, get_args

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from sinkscope.errors import UserError
from sinkscope.sinks.blocks import by_step_blocks

Keys = TypeVar("Keys", xr.DataArray, NDArray[Any])
Scale = Literal["sum", "percent", "mean"]
SCALES: tuple[str, ...] = get_args(Scale)

WITHIN_A_PASS = ("layer", "head", "kv_head")
"""The dims along which the same keys exist, unless some were dropped."""


def has_head(values: xr.DataArray) -> xr.DataArray | bool:
    """Which heads a layer has, boolean `(layer, head)`; True where all have the same, or where there is no dim head."""
    if "layer_heads" not in values.coords or "head" not in values.coords:
        return True
    return (values["head"] < values["layer_heads"]).drop_vars(["layer_heads", "layer_kv_heads"], errors="ignore")


ROUNDING = 0.02
"""By which the shares of one row may make more than 1 where they were kept in half precision."""


def require_scale(scale: str) -> None:
    """Raise `UserError` unless `scale` is one of `SCALES`."""
    if scale not in SCALES:
        raise UserError(f"unknown scale {scale!r}: use one of {', '.join(SCALES)}")


def require_position(received: xr.DataArray) -> None:
    """Raise `UserError` unless it is an array of floating numbers with the dim `position` that every rule works
    along."""
    if not isinstance(received, xr.DataArray):
        raise UserError(f"received attention is an xarray.DataArray, got {type(received).__name__}")
    if "position" not in received.dims:
        raise UserError(f"received attention needs a dim 'position', this array has {tuple(received.dims)}")
    if not np.issubdtype(received.dtype, np.floating):
        raise UserError(f"received attention is shares, floating numbers of 0 to 1; this array is {received.dtype}")


def checked(received: xr.DataArray) -> xr.DataArray:
    """The same array. Raises `UserError` where its numbers are no shares of attention.

    Shares lie in [0, 1] and make at most 1 over the keys. A row without any number, while another layer or head of its
    step has some, is a pass that overflowed: a missing key is NaN in its own place alone.
    """
    total = total_and_keys(received)[0].values
    lowest, highest = float(np.fmin.reduce(received.values, axis=None, initial=np.inf)), float(total.max(initial=0.0))
    if lowest < 0 or not highest <= 1 + ROUNDING:
        raise UserError(
            "received attention is shares from 0 to 1 that make at most 1 over the keys; here the least is "
            f"{lowest:g}, and the most over the keys {highest:g}: divide scores by their sum, and record again what "
            "overflowed (--dtype bfloat16 or float32)"
        )
    if (total > 0).all():
        return received
    empty = received.isnull().all("position")
    overflown = empty & ~empty.all([dim for dim in WITHIN_A_PASS if dim in empty.dims]) & has_head(received)
    if overflown.any():
        first = np.argwhere(overflown.values)[0]
        labels = zip(overflown.dims, first, strict=True)
        where = ", ".join(f"{dim} {overflown[dim].values[place]}" for dim, place in labels)
        raise UserError(
            f"received attention is no number at {where}, where others have keys: the pass overflowed, record it again "
            "(--dtype bfloat16 or float32)"
        )
    return received


def own_received(sample: xr.Dataset) -> xr.DataArray:
    """The sample's own received attention. Raises `UserError` where it has none."""
    if not isinstance(sample, xr.Dataset) or "received" not in sample:
        held = f"a dataset of {list(sample.data_vars)}" if isinstance(sample, xr.Dataset) else type(sample).__name__
        raise UserError(f"a sample (trace[0]) is wanted, a dataset with the variable 'received'; got {held}")
    return sample["received"]


def key_exists(received: xr.DataArray) -> xr.DataArray:
    """Which keys exist: boolean, the dims of `received` `(step, layer, head, position)` without layer and head; with
    them where layers or heads hold different keys."""
    return existing(by_step_blocks(keys_of, received), received)


def keys_of(part: xr.DataArray) -> xr.Dataset:
    """Of a few steps: `exists`, which keys any layer and head has, and `same`, whether all have those."""
    there = part.notnull()
    exists = anywhere(there)
    same = (there == exists).all([dim for dim in (*WITHIN_A_PASS, "position") if dim in there.dims])
    return xr.Dataset({"exists": exists, "same": same})


def existing(found: xr.Dataset, received: xr.DataArray) -> xr.DataArray:
    """The result of `key_exists`, from `keys_of` all of `received`, which is read only where rows differ in keys."""
    exists = found["exists"] if found["same"].all() else by_step_blocks(lambda part: part.notnull(), received)
    return exists.rename("exists")


def anywhere(exists: xr.DataArray) -> xr.DataArray:
    """Which keys any layer and head has: `key_exists` without those dims."""
    found = exists.any([dim for dim in WITHIN_A_PASS if dim in exists.dims])
    return found.drop_vars([name for name in WITHIN_A_PASS if name in found.coords])


def key_count(received: xr.DataArray) -> xr.DataArray:
    """Number n of existing keys of every row: the dims of `key_exists` without position."""
    return key_exists(received).sum("position").rename("keys")


def total_and_keys(received: xr.DataArray) -> tuple[xr.DataArray, xr.DataArray]:
    """The sum over the keys that exist, and their number, the dims of `received` without position."""
    total = received.sum("position", skipna=False)
    if np.isnan(total.values).any():
        return received.sum("position"), received.count("position")
    # Most recordings lack no key, and this takes a third of the time.
    return total, total.copy(deep=False, data=np.full(total.shape, received.sizes["position"]))


def mean_over(received: xr.DataArray, dims: str | Collection[Hashable]) -> xr.DataArray:
    """The mean over layers or heads; over both every head that there is counts alike. A key that only some of them hold
    receives nothing in the others."""
    there = has_head(received)
    if isinstance(there, bool):
        mean = received.mean(dims, keep_attrs=True, skipna=False)
        if not np.isnan(mean.values).any():
            return mean
        known = received.fillna(0.0)
    else:
        known = received.fillna(0.0).where(there)
    return known.mean(dims, keep_attrs=True).where(received.notnull().any(dims))


def full_score(scale: str, keys: Keys) -> Keys | float:
    """The score of a key that receives all attention, on `scale`, with `keys` existing keys: n, 100 or 1."""
    require_scale(scale)
    return keys if scale == "sum" else (100.0 if scale == "percent" else 1.0)


def scaled(received: xr.DataArray, scale: str) -> xr.DataArray:
    """Received attention r `(..., position)` as a score on `scale`; NaN stays NaN."""
    return (received * full_score(scale, key_count(received))).rename("score")
