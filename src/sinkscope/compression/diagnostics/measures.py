"""What a recorded sample says about key norms: correlation, attention loss, overlap with sinks, stability.

    norm_correlation(sample)                       # (step, layer, kv_head): below 0 where low norms receive much
    norm_loss(sample)["relative"]                  # (step, layer, kv_head): 0 ideal, 1 a random order, 2 the worst
    sink_overlap(sample, Excess(), ratio=0.5)      # how many sinks are among the half with the lowest norms
    kept_stability(sample, ratio=0.5)              # how much of the kept half is the same at the next step
    pair_norms(sample)                             # what all begin with: attention and norm of the same keys

Everything is about the order that key-norm compression keeps by, lowest norm first. The opposite order, high norms
kept, is its mirror image: without ties its correlation is the negative, its relative loss 2 minus this one. Costs one
sort of every row of keys.

Grouped-query attention: a key serves several query heads, so its attention is the mean over the query heads of its
group. Dropping a key drops it for all of them.

Of a causal model only steps that feed one token count, and the key of that token is left out: what is compared is the
next token's attention over the keys that a cache holds. The prompt's own pass would compare keys that many queries see
with keys that few do.

Where it misleads: attention is the mean over the queries that the sample was recorded with. A diffusion step without a
cache has queries at every position, the prompt's too; `group="masked"` asks those alone that are still to be written.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xarray as xr
from numpy.typing import NDArray

from sinkscope.compression.budgets import Ratio
from sinkscope.compression.diagnostics.orders import (
    attention_loss,
    expected_jaccard,
    kept,
    random_loss,
    relative_loss,
    spearman,
)
from sinkscope.errors import UserError
from sinkscope.ordering import settled
from sinkscope.sinks import SinkRule, mark_sinks, received_from
from sinkscope.sinks.ar import attends_both_ways
from sinkscope.sinks.blocks import by_step_blocks
from sinkscope.sinks.lexicon import model_attributes
from sinkscope.sinks.motion import jaccard
from sinkscope.sinks.scales import anywhere, has_head, key_exists
from sinkscope.sinks.surroundings import over_kv_heads

AMONG = ("all", "outside-block", "tokens")
"""Which keys are looked at: all that there are, those outside the current block (what a block cache may drop), or those
that hold no mask at that step."""


@dataclass(frozen=True, kw_only=True)
class Which:
    """What of a sample is looked at. group: the queries that pay the attention. among: the keys, one of `AMONG`."""

    group: str = "all"
    among: str = "all"

    def __post_init__(self) -> None:
        if self.among not in AMONG:
            raise UserError(f"unknown keys {self.among!r}: use one of {', '.join(AMONG)}")


NO_STEP = "none is recorded yet, or the text ended with its first new token"

WHOLE = Which()
"""All queries and all keys."""


def pair_norms(sample: xr.Dataset, which: Which = WHOLE) -> xr.Dataset:
    """`attention` and `norm`, `(step, layer, kv_head, position)`, NaN in both where a key is not looked at.

    Reads and holds the sample's steps, as float64: for the heads of a large model a few hundred megabytes. Raises
    `UserError` where norms, or the group of queries by head, were not recorded, where the sample has no step to look
    at, where keys were dropped meanwhile, and where none is left.
    """
    if "key_norm" not in sample:
        raise UserError("this trace has no key norms: record it again with --norms (Recording(norms=True))")
    norm = sample["key_norm"]
    received = received_from(sample, which.group)
    if "head" not in received.dims:
        raise UserError(
            f"attention by queries {which.group!r} was recorded as a mean over heads: record with by_group='heads'"
        )
    looked_at = _looked_at(sample, which)
    attention = over_kv_heads(received.astype(np.float64), norm, np.mean).sel(step=looked_at["step"].values)
    norm = norm.sel(step=looked_at["step"].values).astype(np.float64)
    there = attention.notnull() & looked_at
    somewhere = anywhere(key_exists(received))
    holes = bool((received.isnull() & has_head(received) & somewhere).any())
    if holes or bool((there & ~(norm > 0)).any()):
        raise UserError("some keys have no norm: they were dropped, or a sliding cache forgot them; record without")
    if not bool(there.any()):
        raise UserError(
            f"no key is left to look at: {which.among!r} of queries {which.group!r} leaves none at any step"
        )
    pairs = xr.Dataset({"attention": attention.where(there), "norm": norm.where(there)})
    pairs.attrs = {"group": which.group, "among": which.among}
    pairs = pairs.transpose("step", "layer", "kv_head", "position")
    # Norms that are equal but for noise tie, as they do for the scorers that drop by them.
    return pairs.assign(norm=pairs["norm"].copy(data=settled(torch.from_numpy(pairs["norm"].values)).numpy()))


def steps_that_count(sample: xr.Dataset) -> NDArray[np.int64]:
    """Places of the steps that are looked at: all, or of a causal model those that feed one token."""
    steps = np.arange(sample.sizes.get("step", 0))
    if attends_both_ways(sample):
        return steps
    single: NDArray[np.bool_] = (sample["query_stop"] - sample["query_start"]).values == 1
    return steps[single]


def _looked_at(sample: xr.Dataset, which: Which) -> xr.DataArray:
    """Which keys take part if they are there, boolean `(step, position)`, at the steps that take part."""
    steps = steps_that_count(sample)
    if not steps.size:
        raise UserError(f"sample {sample.attrs.get('id')!r} has no step to look at: {NO_STEP}")
    chosen = sample.isel(step=steps)
    position = chosen["position"]
    looked_at = (position >= 0) & (chosen["step"] >= 0)
    causal = not attends_both_ways(sample)
    if causal:
        looked_at = looked_at & (position != chosen["query_start"])
    if which.among == "outside-block" and not causal:
        looked_at = looked_at & ((position < chosen["block_start"]) | (position >= chosen["block_stop"]))
    if which.among == "tokens":
        mask = model_attributes(sample).get("mask_token_id")
        looked_at = looked_at & (chosen["canvas"] != (-1 if mask is None else mask))
    return looked_at.transpose("step", "position")


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
    sinks = mark_sinks(received, rule).drop_vars("exists") & anywhere(key_exists(pairs["norm"]))
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
    there = anywhere(key_exists(pairs["norm"])).values
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
