"""The numbers of one sample that means over many samples are made of: sums, and how many rows they are sums of.

Small whatever the sample's length: a few numbers for each layer and key head.
"""

import numpy as np
import xarray as xr

from sinkscope.compression.diagnostics.control import random_correlations
from sinkscope.compression.diagnostics.measures import kept_stability, norm_correlation, norm_loss, sink_overlap
from sinkscope.compression.diagnostics.pairing import Which, pair_norms
from sinkscope.sinks import SinkRule

PHASES = 4
"""Parts into which the steps of a sample are cut, of equal length."""


def sample_sums(sample: xr.Dataset, rule: SinkRule, ratio: float, which: Which, draws: int, seed: int) -> xr.Dataset:
    """For every measure the sum `name` over rows and their number `name_of`.

    `correlation (phase, layer, kv_head)` with `random (draw, layer)`, sums over the same rows with random orders;
    `negative (layer)`: rows of them below 0. `loss`, `overlap` with `overlap_chance`, `stability` and `first` with
    theirs, `(layer)` each. Raises `UserError` as the measures do.
    """
    attention = pair_norms(sample, which)["attention"]
    correlation = norm_correlation(sample, which)
    overlap = sink_overlap(sample, rule, ratio, which).sum("step")
    stability = kept_stability(sample, ratio, which)
    return xr.Dataset(
        {
            **_phases(correlation),
            "negative": (correlation < 0).sum(["step", "kv_head"]),
            "random": random_correlations(attention, draws, seed),
            **_rows(norm_loss(sample, which)["relative"], "loss"),
            "overlap": overlap["held"],
            "overlap_chance": overlap["chance"],
            "overlap_of": overlap["sinks"],
            **_beside_chance(stability["before"], stability["before_chance"], "stability"),
            **_beside_chance(stability["first"], stability["first_chance"], "first"),
        }
    ).drop_attrs()


def _phases(values: xr.DataArray) -> dict[str, xr.DataArray]:
    steps = values.sizes["step"]
    phase = xr.DataArray(PHASES * np.arange(steps) // steps, dims="step", name="phase")
    every = {"phase": np.arange(PHASES)}
    sums = {"correlation": values.fillna(0.0), "correlation_of": values.notnull().astype(np.int64)}
    return {
        name: one.groupby(phase).sum("step").reindex(every, fill_value=0).transpose("phase", "layer", "kv_head")
        for name, one in sums.items()
    }


def _rows(values: xr.DataArray, name: str) -> dict[str, xr.DataArray]:
    rest = [dim for dim in values.dims if dim != "layer"]
    return {name: values.sum(rest), f"{name}_of": values.notnull().sum(rest)}


def _beside_chance(values: xr.DataArray, chance: xr.DataArray, name: str) -> dict[str, xr.DataArray]:
    expected = chance.where(values.notnull())
    rest = [dim for dim in values.dims if dim != "layer"]
    return {**_rows(values, name), f"{name}_chance": expected.sum(rest)}
