"""Means over samples with 95 % intervals, from sums that were taken sample by sample.

A mean is the sum of `name` over the sum of `name_of`. Its interval is over samples (`sinkscope.intervals`): rows of one
sample go together, since they share prompt and keys. Fewer than six samples have no interval, and samples that all say
the same have none.
"""

import numpy as np
import xarray as xr

from sinkscope.intervals import Floats, score_interval

BOUNDS = (0.025, 0.975)


def mean_of(sums: xr.Dataset, name: str, keep: tuple[str, ...], of: str | None = None) -> xr.DataArray:
    """`name` over `of` (`name_of` without it), summed over everything but the dims in `keep`; NaN where nothing is."""
    total, count = _summed(sums, name, keep), _summed(sums, of or f"{name}_of", keep)
    return (total / count.where(count > 0)).rename(name)


def with_interval(sums: xr.Dataset, name: str, keep: tuple[str, ...]) -> xr.Dataset:
    """The mean under its own name, and `low` and `high`; sums have the dim `sample`."""
    mean = mean_of(sums, name, keep)
    total, count = (
        _summed(sums, one, ("sample", *keep)).transpose("sample", *mean.dims).values[None]
        for one in (name, f"{name}_of")
    )
    low, high = (mean.copy(data=end) for end in score_interval(total, count))
    return xr.Dataset({name: mean, "low": low, "high": high})


def percentiles(values: xr.DataArray, dim: str) -> tuple[xr.DataArray, xr.DataArray]:
    """What 95 % of the values along `dim` lie between; NaN takes no part, and alone stays NaN."""
    rest = [str(one) for one in values.dims if one != dim]
    table: Floats = values.transpose(dim, *rest).values.reshape(values.sizes[dim], -1)
    found = np.full((len(BOUNDS), table.shape[1]), np.nan)
    known = ~np.isnan(table).all(0)
    found[:, known] = np.nanquantile(table[:, known], BOUNDS, axis=0)
    one = values.isel({dim: 0}, drop=True).transpose(*rest)
    low, high = (one.copy(data=row.reshape(one.shape)) for row in found)
    return low, high


def _summed(sums: xr.Dataset, name: str, keep: tuple[str, ...]) -> xr.DataArray:
    values = sums[name].astype(np.float64)
    return values.sum([dim for dim in values.dims if dim not in keep])
