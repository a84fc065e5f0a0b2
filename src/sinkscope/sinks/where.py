"""Where the sinks are and how strong: by step, by layer, by layer and head.

    where = sink_positions(sample)            # position of the top sink (2510.15731, Fig. 7)
    main_sink_strength(sample)                # layer x head, averaged over steps (Fig. 5)
    sinks_per_layer(sinks)

The *top sink* is the existing key that receives most, ties going to the lower position; it exists in a flat map too, so
read positions beside strengths. "Position" is the coordinate's label, counted from the first token of the prompt.

Cost: one pass over the recording.
Where it misleads: the mean over layers and heads can have its peak where no single head has one.
"""

import numpy as np
import xarray as xr

from sinkscope.sinks.blocks import by_step_blocks
from sinkscope.sinks.rules import TopK
from sinkscope.sinks.scales import (
    anywhere,
    full_score,
    key_count,
    key_exists,
    mean_over,
    require_position,
    require_scale,
)

NOWHERE = -1
"""The position of the top sink where no key exists (a group of queries that is empty at that step)."""


def top_positions(received: xr.DataArray) -> xr.DataArray:
    """Label of the position that receives most, without the dim `position`; `NOWHERE` where no key exists."""
    require_position(received)
    return by_step_blocks(lambda part: _top(part)["position_of_top"], received).rename("position_of_top")


def sink_positions(sample: xr.Dataset, *, received: xr.DataArray | None = None) -> xr.Dataset:
    """The top sink of every step: for the mean over layers and heads, for each layer, for each layer and head.

    Variables `overall (step)`, `by_layer (step, layer)`, `by_head (step, layer, head)`: position labels, `NOWHERE`
    where no key exists; `overall_received`, `by_layer_received`, `by_head_received`: the share r that it receives;
    `keys (step)`: n. Without heads in `received` there is no `by_head`.
    """
    array = sample["received"] if received is None else received
    require_position(array)
    found = by_step_blocks(_tops, array)
    found = found.assign(keys=anywhere(key_exists(array)).sum("position"))
    found.attrs = {"group": array.attrs.get("group", "all")}
    return found


def main_sink_strength(sample: xr.Dataset, scale: str = "sum", *, received: xr.DataArray | None = None) -> xr.DataArray:
    """Score of the strongest key, averaged over the steps that have keys: `(layer, head)` (2510.15731, Fig. 5)."""
    require_scale(scale)
    array = sample["received"] if received is None else received
    where = sink_positions(sample, received=array)
    name = "by_head_received" if "by_head_received" in where else "by_layer_received"
    strength = (where[name] * full_score(scale, key_count(array))).mean("step").rename("strength")
    strength.attrs = {"scale": scale, "group": where.attrs["group"]}
    return strength


def sinks_per_layer(sinks: xr.DataArray) -> xr.Dataset:
    """How many sinks a layer has. `sinks`: boolean, as from `find_sinks`; each variable is `(layer,)`.

    `sinks`: mean number in one head at one step; `share`: of the existing keys; `any`: share of (step, head) with at
    least one. Steps without any key (an empty group) do not count.
    """
    counts = layer_counts(sinks)
    table = xr.Dataset(
        {
            "sinks": counts["sinks"] / counts["rows"],
            "share": counts["sinks"] / counts["keys"],
            "any": counts["any"] / counts["rows"],
        }
    )
    table.attrs = dict(sinks.attrs)
    return table


def layer_counts(sinks: xr.DataArray, keep: tuple[str, ...] = ("layer",)) -> xr.Dataset:
    """The sums behind `sinks_per_layer`, for every index of the dims in `keep`: sinks, rows with a sink, rows, keys."""
    per_row = sinks.sum("position")
    keys = sinks["exists"].sum("position") + xr.zeros_like(per_row)
    rest = [dim for dim in per_row.dims if dim not in keep]
    sums = {"sinks": per_row, "any": per_row > 0, "rows": keys > 0, "keys": keys}
    return xr.Dataset({name: rows.sum(rest) for name, rows in sums.items()}).drop_vars("exists", errors="ignore")


def _top(part: xr.DataArray) -> xr.Dataset:
    """Position label of the highest number of every row, and its value, NaN where there is none."""
    top = TopK(1).marks(part)
    index = top.argmax("position")
    labels = xr.DataArray(part["position"].values[index.values], dims=index.dims, coords=index.coords)
    where = labels.where(top.any("position"), NOWHERE).astype(np.int64)
    return xr.Dataset({"position_of_top": where, "received": part.max("position")})


def _tops(part: xr.DataArray) -> xr.Dataset:
    parts = {}
    if "head" in part.dims:
        parts["by_head"] = part
        part = mean_over(part, "head")
    if "layer" in part.dims:
        parts["by_layer"] = part
        part = mean_over(part, "layer")
    parts["overall"] = part
    found = {name: _top(array) for name, array in parts.items()}
    positions = {name: top["position_of_top"] for name, top in found.items()}
    return xr.Dataset(positions | {f"{name}_received": top["received"] for name, top in found.items()})
