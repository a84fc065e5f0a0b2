"""How far sinks stand from what is still masked and from the current block.

All distances are signed, position of the sink minus position of the mark, in tokens: positive means that the sink lies
to the right of it.

- `nearest_masked`: the nearest masked position (0 on a masked position; of two equally near, the left one)
- `frontier`: the leftmost masked position, so negative means in finished text
- `block_start`, `block_stop`: the first position of the current block, and the first after it

The first two are NaN at a step that has no mask left; such steps count in no mean. The mask is the model's mask token
on the canvas; without one (autoregressive models) only the block's edges remain.

Where it misleads: distances of any position shrink as text fills up, so each mean stands beside the same mean over all
existing positions (`..._base`).
"""

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from sinkscope.errors import UserError
from sinkscope.sinks.lexicon import Lexicon
from sinkscope.sinks.scales import anywhere

EDGES = ("block_start", "block_stop")


def distance_maps(sample: xr.Dataset) -> xr.Dataset:
    """The signed distance of every position at every step to each mark that is recorded, `(step, position)`.

    Raises `UserError` when neither masks nor blocks are recorded.
    """
    maps = {}
    mask = Lexicon.of(sample).mask_token_id
    if mask is not None and "canvas" in sample:
        canvas = sample["canvas"].transpose("step", "position")
        near, frontier = mask_distances(canvas.values == mask, canvas["position"].values)
        maps = {"nearest_masked": canvas.copy(data=near), "frontier": canvas.copy(data=frontier)}
    for edge in EDGES:
        if edge in sample:
            maps[edge] = (sample["position"] - sample[edge]).astype(np.float64).transpose("step", "position")
    if not maps:
        raise UserError(
            "no mask token id, canvas or blocks in this sample: distances need a trace of a diffusion or masked model"
        )
    return xr.Dataset(maps)


def mask_distances(
    masked: NDArray[np.bool_], positions: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Signed distances to the nearest and to the leftmost masked position, both `(step, position)`; NaN without one."""
    at = positions.astype(np.float64)
    left = np.maximum.accumulate(np.where(masked, at, -np.inf), axis=1)
    right = np.minimum.accumulate(np.where(masked, at, np.inf)[:, ::-1], axis=1)[:, ::-1]
    nearest = np.where(at - left <= right - at, left, right)
    first = right[:, :1]
    some = masked.any(axis=1, keepdims=True)
    return np.where(some, at - nearest, np.nan), np.where(some, at - first, np.nan)


def sink_distances(sample: xr.Dataset, sinks: xr.DataArray) -> xr.Dataset:
    """Mean distance of a layer's sinks to every mark, `(mark, layer)`: `mean` (signed), `absolute`, `sinks` (how many);

    and over all existing positions, `(mark,)`: `mean_base`, `absolute_base`. Every sink whose distance is known counts
    once.
    """
    return distance_means(distance_sums(sample, sinks))


def distance_sums(sample: xr.Dataset, sinks: xr.DataArray) -> xr.Dataset:
    """The sums behind `sink_distances`, additive over samples."""
    maps = distance_maps(sample).sel(step=sinks["step"].values, position=sinks["position"].values)
    signed = maps.to_dataarray("mark")
    exists = anywhere(sinks["exists"].drop_vars("exists"))
    known = (signed.notnull() & exists).astype(np.float64)
    signed = signed.where(known > 0, 0.0)
    held = sinks.drop_vars("exists").sum([dim for dim in ("head",) if dim in sinks.dims]).astype(np.float64)
    cells = ["step", "position"]
    return xr.Dataset(
        {
            "signed": xr.dot(signed, held, dim=cells),
            "far": xr.dot(abs(signed), held, dim=cells),
            "sinks": xr.dot(known, held, dim=cells),
            "signed_base": signed.sum(cells),
            "far_base": abs(signed).sum(cells),
            "cells": known.sum(cells),
        }
    )


def distance_means(sums: xr.Dataset) -> xr.Dataset:
    """Means from `distance_sums`; NaN where no sink (no position) has a known distance."""
    sinks = sums["sinks"].where(sums["sinks"] > 0)
    cells = sums["cells"].where(sums["cells"] > 0)
    return xr.Dataset(
        {
            "mean": sums["signed"] / sinks,
            "absolute": sums["far"] / sinks,
            "sinks": sums["sinks"].astype(np.int64),
            "mean_base": sums["signed_base"] / cells,
            "absolute_base": sums["far_base"] / cells,
        }
    )
