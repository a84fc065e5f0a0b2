"""Norms of keys and values where the sinks are, against everywhere else (value-norm ratio: 2601.19657).

Sinks are known for small values: attention parked there changes little. A ratio below 1 says so.

Grouped-query attention: a key/value head serves several query heads, so its norm counts once for each of them, as a
sink where that head sees one and among the others where not.

Where it misleads: the ratio is of means over all (step, head, position) of a layer, so steps and heads with many sinks
weigh more; with one sink a row it compares one key with the average of many.
"""

from typing import Literal

import numpy as np
import xarray as xr

from sinkscope.errors import UserError
from sinkscope.sinks.blocks import by_step_blocks
from sinkscope.sinks.scales import anywhere

Norm = Literal["key", "value"]


def norm_ratio(sample: xr.Dataset, sinks: xr.DataArray, of: Norm = "value") -> xr.Dataset:
    """Mean norm `at_sinks`, at `others`, and their `ratio`, `(layer,)`; NaN where a layer has no sink.

    Raises `UserError` when the norms were not recorded.
    """
    table = norm_means(norm_sums(sample, sinks, of))
    table.attrs = {**sinks.attrs, "norm": of}
    return table


def norm_sums(sample: xr.Dataset, sinks: xr.DataArray, of: Norm) -> xr.Dataset:
    """The sums behind `norm_ratio`, `(layer,)`, additive over samples."""
    name = f"{of}_norm"
    if name not in sample:
        raise UserError(f"this trace has no {of} norms: record it again with Recording(norms=True)")
    norms = sample[name].sel(step=sinks["step"].values, position=sinks["position"].values)
    shared = _queries_per_key(sinks.sizes.get("head", norms.sizes["kv_head"]), norms.sizes["kv_head"])
    both = xr.Dataset(
        {"sinks": sinks.drop_vars("exists"), "exists": anywhere(sinks["exists"].drop_vars("exists")), "norm": norms}
    )
    per_step = by_step_blocks(lambda part: _sums(part, shared), both)
    return per_step.sum("step")


def norm_means(sums: xr.Dataset) -> xr.Dataset:
    """Means and ratio from `norm_sums`."""
    at_sinks = sums["sink_norm"] / sums["sinks"].where(sums["sinks"] > 0)
    others = sums["other_norm"] / sums["others"].where(sums["others"] > 0)
    return xr.Dataset({"at_sinks": at_sinks, "others": others, "ratio": at_sinks / others.where(others > 0)})


def _sums(part: xr.Dataset, shared: int) -> xr.Dataset:
    norm = part["norm"]
    held = part["sinks"].astype(np.int64)
    if "head" in held.dims:
        held = held.drop_vars("head", errors="ignore").coarsen(head=shared).sum().rename(head="kv_head")
        held = held.assign_coords(kv_head=norm["kv_head"])
    known = norm.notnull() & part["exists"]
    held = held.where(known, 0)
    rest = (shared - held).where(known, 0)
    norm = norm.fillna(0.0)
    cells = ["kv_head", "position"]
    sums = {"sink_norm": norm * held, "other_norm": norm * rest, "sinks": held, "others": rest}
    return xr.Dataset({name: values.sum(cells) for name, values in sums.items()})


def _queries_per_key(heads: int, kv_heads: int) -> int:
    if heads % kv_heads:
        raise UserError(
            f"{heads} query heads do not divide over {kv_heads} key heads: are sinks and norms of one sample?"
        )
    return heads // kv_heads
