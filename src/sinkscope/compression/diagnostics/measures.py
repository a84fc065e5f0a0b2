"""What a recorded sample says about key norms: correlation, attention loss, overlap with sinks, stability.

    norm_correlation(sample)                       # (step, layer, kv_head): below 0 where low norms receive much
    norm_loss(sample)["relative"]                  # (step, layer, kv_head): 0 ideal, 1 a random order, 2 the worst
    sink_overlap(sample, Excess(), ratio=0.5)      # how many sinks are among the half with the lowest norms
    kept_stability(sample, ratio=0.5)              # how much of the kept half is the same at the next step

Everything is about the order that key-norm compression keeps by, lowest norm first. The opposite order, high norms
kept, is its mirror image: without ties its correlation is the negative, its relative loss 2 minus this one.

Which keys and queries are looked at: see `pairing.py`. Costs one sort of every row of keys.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from sinkscope.compression.budgets import Ratio
from sinkscope.compression.diagnostics.chance import expected_jaccard
from sinkscope.compression.diagnostics.losses import attention_loss, random_loss, relative_loss
from sinkscope.compression.diagnostics.pairing import WHOLE, Which, over_kv_heads, pair_norms
from sinkscope.compression.diagnostics.ranks import kept, spearman
from sinkscope.sinks import SinkRule, received_from
from sinkscope.sinks.blocks import by_step_blocks
from sinkscope.sinks.find import mark_sinks
from sinkscope.sinks.motion import jaccard
from sinkscope.sinks.scales import key_exists


def norm_correlation(sample: xr.Dataset, which: Which = WHOLE) -> xr.DataArray:
    """Spearman's correlation of key norm and received attention over the keys of a row, `(step, layer, kv_head)`.

    Below 0 where low norms receive much, as 2406.11430 has it. NaN with fewer than two keys or equal values.
    """
    pairs = pair_norms(sample, which)
    found = by_step_blocks(lambda part: _by_row(spearman, part["norm"], part["attention"]), pairs)
    return found.rename("correlation").assign_attrs(pairs.attrs)


def norm_loss(sample: xr.Dataset, which: Which = WHOLE) -> xr.Dataset:
    """Attention loss ALR of dropping the highest norms first, `(step, layer, kv_head)` each.

    `loss`; `random`, that of a random order (exact); `relative`, the one divided by the other.
    """
    pairs = pair_norms(sample, which)

    def losses(part: xr.Dataset) -> xr.Dataset:
        attention, importance = part["attention"], -part["norm"]
        return xr.Dataset(
            {
                "loss": _by_row(attention_loss, attention, importance),
                "random": _by_row(random_loss, attention),
                "relative": _by_row(relative_loss, attention, importance),
            }
        )

    return by_step_blocks(losses, pairs).assign_attrs(pairs.attrs)


def sink_overlap(sample: xr.Dataset, rule: SinkRule, ratio: float = 0.5, which: Which = WHOLE) -> xr.Dataset:
    """How many of the sinks are among the lowest norms of their row, `(step, layer)` each, summed over query heads.

    Of n keys that are looked at the `ceil(ratio * n)` with the lowest norms are taken. `sinks`: how many there are by
    `rule`; `held`: how many of them are taken; `chance`: how many a random choice of as many keys would take (exact).
    """
    pairs = pair_norms(sample, which)
    received = received_from(sample, which.group).sel(step=pairs["step"].values)
    sinks = mark_sinks(received, rule).drop_vars("exists") & key_exists(pairs["norm"])
    counted = over_kv_heads(sinks.astype(np.int64), pairs["norm"], np.sum)
    taken = _kept_of(pairs["norm"], ratio)
    keys = pairs["norm"].notnull().sum("position")
    likely = taken.sum("position") / keys.where(keys > 0)
    cells = ["kv_head", "position"]
    found = xr.Dataset(
        {
            "sinks": counted.sum(cells),
            "held": (counted * taken).sum(cells),
            "chance": (counted.sum("position") * likely.fillna(0.0)).sum("kv_head"),
        }
    )
    return found.transpose("step", "layer").assign_attrs(pairs.attrs, ratio=ratio, **rule.settings())


def kept_stability(sample: xr.Dataset, ratio: float = 0.5, which: Which = WHOLE) -> xr.Dataset:
    """Overlap of the kept sets of keys (lowest norms) of two steps: their Jaccard index, `(step, layer, kv_head)`.

    `before`: with the step before; `first`: with the first step; both NaN at the first. `before_chance`,
    `first_chance (step,)`: what two random choices of as many keys would give (exact). Without a block cache the keys
    of a diffusion model are computed anew at every step, and so is the choice; those of a causal model stay, and only
    newcomers change it.
    """
    pairs = pair_norms(sample, which)
    taken = _kept_of(pairs["norm"], ratio)
    there = key_exists(pairs["norm"]).values
    later = taken.isel(step=slice(1, None))
    before = taken.isel(step=slice(None, -1)).assign_coords(step=later["step"])
    first = taken.isel(step=0, drop=True)
    steps = range(1, len(there))
    found = xr.Dataset(
        {
            "before": jaccard(later, before),
            "first": jaccard(later, first),
            "before_chance": ("step", _chances(there, ratio, [(step - 1, step) for step in steps])),
            "first_chance": ("step", _chances(there, ratio, [(0, step) for step in steps])),
        },
        coords={"step": later["step"]},
    )
    return found.reindex(step=taken["step"]).assign_attrs(pairs.attrs, ratio=ratio)


def _kept_of(norm: xr.DataArray, ratio: float) -> xr.DataArray:
    """Which keys are among the lowest norms, boolean, the dims of `norm`."""
    return by_step_blocks(lambda part: part.copy(data=kept(-part.values, Ratio(ratio))), norm)


def _chances(there: NDArray[np.bool_], ratio: float, pairs: Sequence[tuple[int, int]]) -> list[float]:
    """The Jaccard index that random choices would have on average, for pairs of steps; `there` (step, position)."""
    counts = there.sum(-1)
    expected = []
    for one, other in pairs:
        keys = (int(counts[one]), int(counts[other]))
        chosen = (Ratio(ratio).kept(keys[0], 0), Ratio(ratio).kept(keys[1], 0))
        expected.append(expected_jaccard(keys, chosen, int((there[one] & there[other]).sum())))
    return expected


def _by_row(function: Callable[..., Any], *arrays: xr.DataArray) -> xr.DataArray:
    """A function of arrays `(..., key)`, taken along `position`."""
    found: xr.DataArray = xr.apply_ufunc(function, *arrays, input_core_dims=[["position"]] * len(arrays))
    return found
