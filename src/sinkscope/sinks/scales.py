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
"""

from collections.abc import Collection, Hashable
from typing import Literal, get_args

import xarray as xr

from sinkscope.errors import UserError
from sinkscope.sinks.blocks import by_step_blocks

Scale = Literal["sum", "percent", "mean"]
SCALES: tuple[str, ...] = get_args(Scale)

WITHIN_A_PASS = ("layer", "head", "kv_head")
"""The dims along which the same keys exist, unless some were dropped."""


def require_scale(scale: str) -> None:
    """Raise `UserError` unless `scale` is one of `SCALES`."""
    if scale not in SCALES:
        raise UserError(f"unknown scale {scale!r}: use one of {', '.join(SCALES)}")


def require_position(received: xr.DataArray) -> None:
    """Raise `UserError` unless the array has the dim `position` that every rule works along."""
    if "position" not in received.dims:
        raise UserError(f"received attention needs a dim 'position', this array has {tuple(received.dims)}")


def key_exists(received: xr.DataArray) -> xr.DataArray:
    """Which keys exist: boolean, the dims of `received` `(step, layer, head, position)` without layer and head; with
    them where layers or heads hold different keys."""
    exists = by_step_blocks(lambda part: part.notnull(), received).rename("exists")
    somewhere = anywhere(exists)
    same = bool((exists == somewhere).all())
    return somewhere if same else exists


def anywhere(exists: xr.DataArray) -> xr.DataArray:
    """Which keys any layer and head has: `key_exists` without those dims."""
    found = exists.any([dim for dim in WITHIN_A_PASS if dim in exists.dims])
    return found.drop_vars([name for name in WITHIN_A_PASS if name in found.coords])


def key_count(received: xr.DataArray) -> xr.DataArray:
    """Number n of existing keys of every row: the dims of `key_exists` without position."""
    return key_exists(received).sum("position").rename("keys")


def mean_over(received: xr.DataArray, dims: str | Collection[Hashable]) -> xr.DataArray:
    """The mean over layers or heads. A key that only some of them hold receives nothing in the others."""
    return received.fillna(0.0).mean(dims, keep_attrs=True).where(received.notnull().any(dims))


def full_score(scale: str, keys: xr.DataArray) -> xr.DataArray | float:
    """The score of a key that receives all attention, on `scale`, with `keys` existing keys: n, 100 or 1."""
    require_scale(scale)
    return keys if scale == "sum" else (100.0 if scale == "percent" else 1.0)


def scaled(received: xr.DataArray, scale: str) -> xr.DataArray:
    """Received attention r `(..., position)` as a score on `scale`; NaN stays NaN."""
    return (received * full_score(scale, key_count(received))).rename("score")
