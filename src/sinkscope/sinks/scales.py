"""The three scales on which received attention is quoted, and how many keys a row has.

Received attention r is a mean over queries, so it sums to 1 over the keys that exist. With n existing keys:

| scale     | score   | a key that gets its fair share scores |
|-----------|---------|---------------------------------------|
| `sum`     | n r     | 1                                     |
| `percent` | 100 r   | 100 / n                               |
| `mean`    | r       | 1 / n                                 |

n counts existing keys, not queries: in a pass over a block cache fewer rows are fed than there are keys, and in an
autoregressive model keys are still missing (NaN). Whether a key exists depends on step and position only, never on
layer or head; the first layer and head are looked at.
"""

from typing import Literal, get_args

import xarray as xr

from sinkscope.errors import UserError

Scale = Literal["sum", "percent", "mean"]
SCALES: tuple[str, ...] = get_args(Scale)

WITHIN_A_PASS = ("layer", "head", "kv_head")
"""The dims along which the same keys exist."""


def require_scale(scale: str) -> None:
    """Raise `UserError` unless `scale` is one of `SCALES`."""
    if scale not in SCALES:
        raise UserError(f"unknown scale {scale!r}: use one of {', '.join(SCALES)}")


def require_position(received: xr.DataArray) -> None:
    """Raise `UserError` unless the array has the dim `position` that every rule works along."""
    if "position" not in received.dims:
        raise UserError(f"received attention needs a dim 'position', this array has {tuple(received.dims)}")


def key_exists(received: xr.DataArray) -> xr.DataArray:
    """Which keys exist: boolean, the dims of `received` `(step, layer, head, position)` without layer and head."""
    one = received.isel({dim: 0 for dim in WITHIN_A_PASS if dim in received.dims}, drop=True)
    return one.notnull().rename("exists")


def key_count(received: xr.DataArray) -> xr.DataArray:
    """Number n of existing keys of every row: the dims of `received` without layer, head and position."""
    return key_exists(received).sum("position").rename("keys")


def full_score(scale: str, keys: xr.DataArray) -> xr.DataArray | float:
    """The score of a key that receives all attention, on `scale`, with `keys` existing keys: n, 100 or 1."""
    require_scale(scale)
    return keys if scale == "sum" else (100.0 if scale == "percent" else 1.0)


def scaled(received: xr.DataArray, scale: str) -> xr.DataArray:
    """Received attention r `(..., position)` as a score on `scale`; NaN stays NaN."""
    return (received * full_score(scale, key_count(received))).rename("score")
