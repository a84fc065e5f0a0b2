"""Find the sinks of a sample with a rule; see where they are, how strong, and how many by the rule's epsilon.

    sinks = find_sinks(sample, Excess(epsilon=3.0, scale="sum"))
    sinks = find_sinks(sample, Threshold(0.3), received=received_from(sample, "masked"))
    where = sink_positions(sample)            # position of the top sink (2510.15731, Fig. 7)
    main_sink_strength(sample)                # layer x head, averaged over steps (Fig. 5)
    sinks_per_layer(sinks)
    pick(sample, steps=[0, 64], layers=[3])   # first, to look at a part

Sinks are a boolean array with the dims of the received attention. It carries a coordinate `exists` (which keys existed,
step x position), so that shares can be taken of the keys that there were, and attributes that name the rule, its
parameters and the group of queries. The *top sink* is the existing key that receives most, ties going to the lower
position; it exists in a flat map too, so read positions beside strengths. "Position" is the coordinate's label, counted
from the first token of the prompt.

Cost: one pass over the recording, a few slices of steps in memory beside the boolean result.
Where it misleads: a rule that needs more keys than an early autoregressive step has simply finds nothing there; it is
refused only when it cannot fire at any step. The mean over layers and heads can have its peak where no single head has
one. Measures of motion take picked steps for neighbours.
"""

from collections.abc import Sequence

import numpy as np
import xarray as xr

from sinkscope.errors import UserError
from sinkscope.ordering import count_above, highest
from sinkscope.sinks.blocks import by_step_blocks
from sinkscope.sinks.rules import KeyCounts, SinkRule, excess_limit, require_epsilon, require_reachable
from sinkscope.sinks.scales import (
    anywhere,
    checked,
    full_score,
    has_head,
    key_count,
    key_exists,
    mean_over,
    own_received,
    require_position,
    require_scale,
    total_and_keys,
)

EPSILONS = (0.0, 2.0, 3.0, 4.0, 6.0, 8.0, 10.0)
"""The values of the published sweep (2510.15731, Fig. 10)."""
NOWHERE = -1
"""The position of the top sink where no key exists (a group of queries that is empty at that step)."""


def find_sinks(sample: xr.Dataset, rule: SinkRule, *, received: xr.DataArray | None = None) -> xr.DataArray:
    """Boolean array `(step, layer, head, position)`: where `rule` sees a sink.

    `received` takes the place of the sample's own received attention, for example `received_from(sample, "masked")`.
    Raises `UserError` when the rule can never fire on this sample.
    """
    return mark_sinks(own_received(sample) if received is None else received, rule)


def mark_sinks(received: xr.DataArray, rule: SinkRule) -> xr.DataArray:
    """As `find_sinks`, from received attention with any dims besides `position`, in the order they came."""
    require_position(received)
    exists = key_exists(received)
    rule.refuse(count_keys(exists, received))
    sinks = by_step_blocks(lambda part: rule.marks(checked(part)).transpose(*part.dims), received)
    return named_sinks(sinks, exists, received, rule)


def named_sinks(sinks: xr.DataArray, exists: xr.DataArray, received: xr.DataArray, rule: SinkRule) -> xr.DataArray:
    """Marks of `rule` on all of `received`, with the coordinate and the attributes of a result."""
    sinks = sinks.rename("sink").assign_coords(exists=exists)
    sinks.attrs = {**rule.settings(), "group": asked_by(received)}
    return sinks


def asked_by(received: xr.DataArray) -> str:
    """Which queries paid this attention: a group, "all" of a step's, or the name of another pass (`final_received`)."""
    other = received.name not in (None, "received")
    return str(received.attrs.get("group", received.name if other else "all"))


def key_counts(received: xr.DataArray) -> KeyCounts:
    """The fewest and most existing keys over the rows that have any. Raises `UserError` when no row has."""
    require_position(received)
    return count_keys(key_exists(received), received)


def count_keys(exists: xr.DataArray, received: xr.DataArray) -> KeyCounts:
    """As `key_counts`, from the result of `key_exists`."""
    keys = exists.sum("position").values
    if not (keys > 0).any():
        group = received.attrs.get("group", "all")
        raise UserError(f"no received attention by queries {group!r} at any step: choose another group or other steps")
    return KeyCounts(fewest=int(keys[keys > 0].min()), most=int(keys.max()))


def sweep_epsilon(
    sample: xr.Dataset,
    epsilons: Sequence[float] = EPSILONS,
    scale: str = "sum",
    *,
    received: xr.DataArray | None = None,
) -> xr.DataArray:
    """Share of existing keys that are no sinks under the excess rule, `(epsilon,)` (2510.15731, Fig. 10).

    Every (step, layer, head, existing key) counts once. Raises `UserError` for an epsilon that can never fire.
    """
    array = own_received(sample) if received is None else received
    most = key_counts(array).most
    for epsilon in epsilons:
        require_epsilon(epsilon, scale)
        require_reachable(epsilon, scale, most)
    counts = count_non_sinks(array, epsilons, scale)
    share = (counts["non_sinks"] / counts["cells"]).rename("non_sink_share")
    share.attrs = {"rule": "excess", "scale": scale, "group": array.attrs.get("group", "all")}
    return share


def count_non_sinks(received: xr.DataArray, epsilons: Sequence[float], scale: str) -> xr.Dataset:
    """The sums behind `sweep_epsilon`: `non_sinks (epsilon,)`, `cells ()`; additive over samples, refuses nothing."""
    require_position(received)
    counts = by_step_blocks(lambda part: non_sinks_of(checked(part), epsilons, scale), received)
    return counts.sum([dim for dim in counts.dims if dim != "epsilon"])


def non_sinks_of(part: xr.DataArray, epsilons: Sequence[float], scale: str) -> xr.Dataset:
    """As `count_non_sinks`, of every step."""
    part = part if "step" in part.dims else part.expand_dims("step")
    part = part.transpose("step", ..., "position")
    total, keys = total_and_keys(part)
    limits = [excess_limit(total, keys, epsilon, scale).values for epsilon in epsilons]
    found = [[count_above(one, most) for one, most in zip(part.values, limit, strict=True)] for limit in limits]
    sinks = xr.DataArray(found, dims=("epsilon", "step"), coords={"epsilon": [float(one) for one in epsilons]})
    cells = keys.sum([dim for dim in keys.dims if dim != "step"])
    return xr.Dataset({"non_sinks": cells - sinks, "cells": cells})


def top_positions(received: xr.DataArray) -> xr.DataArray:
    """Label of the position that receives most, without the dim `position`; `NOWHERE` where no key exists."""
    require_position(received)
    return by_step_blocks(lambda part: _top(checked(part))[0], received).rename("position_of_top")


def sink_positions(sample: xr.Dataset, *, received: xr.DataArray | None = None) -> xr.Dataset:
    """The top sink of every step: for the mean over layers and heads, for each layer, for each layer and head.

    Variables `overall (step)`, `by_layer (step, layer)`, `by_head (step, layer, head)`: position labels, `NOWHERE`
    where no key exists; `overall_received`, `by_layer_received`, `by_head_received`: the share r that it receives;
    `keys (step)`: n. Without heads in `received` there is no `by_head`.
    """
    array = own_received(sample) if received is None else received
    require_position(array)
    return named_tops(by_step_blocks(lambda part: tops(checked(part)), array), key_exists(array), array)


def named_tops(found: xr.Dataset, exists: xr.DataArray, received: xr.DataArray) -> xr.Dataset:
    """The `tops` of all of `received`, with the keys and the attributes of a result."""
    found = found.assign(keys=anywhere(exists).sum("position"))
    found.attrs = {"group": received.attrs.get("group", "all")}
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
    counts = row_counts(sinks)
    return counts.sum([dim for dim in counts.dims if dim not in keep])


def row_counts(sinks: xr.DataArray) -> xr.Dataset:
    """As `layer_counts`, of every row by itself."""
    per_row = sinks.sum("position")
    keys = sinks["exists"].sum("position") + xr.zeros_like(per_row)
    rows = xr.Dataset({"sinks": per_row, "any": per_row > 0, "rows": keys > 0, "keys": keys})
    return rows.drop_vars("exists", errors="ignore")


def _top(part: xr.DataArray) -> tuple[xr.DataArray, xr.DataArray]:
    """Position label of the highest number of every row, and its value, NaN where there is none."""
    values = part.transpose(..., "position").values
    marked = highest(values, 1)
    index = marked.argmax(-1)
    labels = np.where(marked.any(-1), part["position"].values[index], NOWHERE).astype(np.int64)
    row = part.isel(position=0, drop=True)
    return row.copy(deep=False, data=labels), row.copy(deep=False, data=np.fmax.reduce(values, axis=-1))


def tops(part: xr.DataArray) -> xr.Dataset:
    """As `sink_positions`, of a few steps and without `keys`."""
    parts, whole = {}, part
    if "head" in part.dims:
        parts["by_head"] = part
        part = mean_over(part, "head")
    if "layer" in part.dims:
        parts["by_layer"] = part
        # Over heads, then over layers, unless layers differ in heads.
        part = mean_over(part, "layer") if isinstance(has_head(whole), bool) else mean_over(whole, ("layer", "head"))
    parts["overall"] = part
    found = {name: _top(array) for name, array in parts.items()}
    positions = {name: position for name, (position, _) in found.items()}
    return xr.Dataset(positions | {f"{name}_received": received for name, (_, received) in found.items()})


def pick(
    sample: xr.Dataset,
    *,
    steps: Sequence[int] | None = None,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
) -> xr.Dataset:
    """The sample cut to these labels, in this order; dims stay. Raises `UserError` for a label that is not there."""
    wanted = {"step": steps, "layer": layers, "head": heads}
    chosen = {dim: list(labels) for dim, labels in wanted.items() if labels is not None}
    for dim, labels in chosen.items():
        there = set(sample[dim].values.tolist()) if dim in sample.dims else set()
        absent = [label for label in labels if label not in there]
        if absent:
            extent = f"{min(there)} to {max(there)}" if there else "none"
            raise UserError(f"{dim} {absent[0]} is not in this trace: it has {extent}")
    return sample.sel(chosen)
