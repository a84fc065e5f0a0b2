"""Find the sinks of a sample with a rule, and see how their number depends on the rule's epsilon.

    sinks = find_sinks(sample, Excess(epsilon=3.0, scale="sum"))
    sinks = find_sinks(sample, Threshold(0.3), received=received_from(sample, "masked"))

The result is a boolean array with the dims of the received attention. It carries a coordinate `exists` (which keys
existed, step x position), so that shares can be taken of the keys that there were, and attributes that name the rule,
its parameters and the group of queries.

Cost: one pass over the recording, a few slices of steps in memory beside the boolean result.
Where it misleads: a rule that needs more keys than an early autoregressive step has simply finds nothing there; it is
refused only when it cannot fire at any step.
"""

from collections.abc import Sequence

import xarray as xr

from sinkscope.errors import UserError
from sinkscope.ordering import exceeds
from sinkscope.sinks.blocks import by_step_blocks
from sinkscope.sinks.rules import KeyCounts, SinkRule, excess_limit, require_epsilon, require_reachable
from sinkscope.sinks.scales import checked, key_count, key_exists, own_received, require_position

EPSILONS = (0.0, 2.0, 3.0, 4.0, 6.0, 8.0, 10.0)
"""The values of the published sweep (2510.15731, Fig. 10)."""


def find_sinks(sample: xr.Dataset, rule: SinkRule, *, received: xr.DataArray | None = None) -> xr.DataArray:
    """Boolean array `(step, layer, head, position)`: where `rule` sees a sink.

    `received` takes the place of the sample's own received attention, for example `received_from(sample, "masked")`.
    Raises `UserError` when the rule can never fire on this sample.
    """
    return mark_sinks(own_received(sample) if received is None else received, rule)


def mark_sinks(received: xr.DataArray, rule: SinkRule) -> xr.DataArray:
    """As `find_sinks`, from received attention with any dims besides `position`, in the order they came."""
    counts = key_counts(received)
    rule.refuse(counts)
    sinks = by_step_blocks(lambda part: rule.marks(checked(part)).transpose(*part.dims), received)
    sinks = sinks.rename("sink").assign_coords(exists=key_exists(received))
    sinks.attrs = {**rule.settings(), "group": asked_by(received)}
    return sinks


def asked_by(received: xr.DataArray) -> str:
    """Which queries paid this attention: a group, "all" of a step's, or the name of another pass (`final_received`)."""
    other = received.name not in (None, "received")
    return str(received.attrs.get("group", received.name if other else "all"))


def key_counts(received: xr.DataArray) -> KeyCounts:
    """The fewest and most existing keys over the rows that have any. Raises `UserError` when no row has."""
    require_position(received)
    keys = key_count(received).values
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

    def count(part: xr.DataArray) -> xr.Dataset:
        part = checked(part)
        rest = [dim for dim in part.dims if dim != "step"]
        cells = part.notnull().sum(rest)
        sinks = [
            exceeds(part, excess_limit(part, epsilon, scale)).sum(rest).expand_dims(epsilon=[float(epsilon)])
            for epsilon in epsilons
        ]
        found = xr.concat(sinks, dim="epsilon", coords="minimal", compat="override", join="exact")
        return xr.Dataset({"non_sinks": cells - found, "cells": cells})

    counts = by_step_blocks(count, received)
    return counts.sum([dim for dim in counts.dims if dim != "epsilon"])
