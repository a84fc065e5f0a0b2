"""The control of a correlation: how far from 0 random orders come, drawn once for each key and kept over the steps.

A row of n keys and a random order correlate by 0 on average, with the standard deviation 1 / sqrt(n - 1). A mean over
steps does not narrow as that of independent rows would, because the same keys with much the same attention come again
at every step. So orders are drawn for the keys, as norms belong to keys, and each draw is followed through the steps.

Where it misleads: layers share their draws, so differences between layers can't be judged by it. Norms of neighbouring
keys may be alike where random numbers are not.
"""

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from sinkscope.compression.diagnostics.ranks import Floats, standard_ranks


def random_correlations(attention: xr.DataArray, draws: int, seed: int) -> xr.DataArray:
    """Sums over steps and heads of rank correlations with random orders, `(draw, layer)`.

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
