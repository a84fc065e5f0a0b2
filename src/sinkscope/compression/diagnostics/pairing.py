"""Key norms of a recorded sample beside the attention that the same keys receive, one number each for a key.

    pairs = pair_norms(sample)
    pairs["attention"], pairs["norm"]          # both (step, layer, kv_head, position)

Grouped-query attention: a key serves several query heads, so its attention is the mean over the query heads of its
group. Dropping a key drops it for all of them.

Of a causal model only steps that feed one token count, and the key of that token is left out: what is compared is the
next token's attention over the keys that a cache holds. The prompt's own pass would compare keys that many queries see
with keys that few do.

Where it misleads: attention is the mean over the queries that the sample was recorded with. A diffusion step without a
cache has queries at every position, the prompt's too; `group="masked"` asks those alone that are still to be written.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xarray as xr
from numpy.typing import NDArray

from sinkscope.errors import UserError
from sinkscope.ordering import settled
from sinkscope.sinks import received_from
from sinkscope.sinks.ar import attends_both_ways
from sinkscope.sinks.lexicon import model_attributes
from sinkscope.sinks.scales import key_exists

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
    norm = _norms(sample)
    received = received_from(sample, which.group)
    if "head" not in received.dims:
        raise UserError(
            f"attention by queries {which.group!r} was recorded as a mean over heads: record with by_group='heads'"
        )
    looked_at = _looked_at(sample, which)
    attention = over_kv_heads(received.astype(np.float64), norm, np.mean).sel(step=looked_at["step"].values)
    norm = norm.sel(step=looked_at["step"].values).astype(np.float64)
    there = attention.notnull() & looked_at
    holes = "layer" in key_exists(received).dims
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


def over_kv_heads(values: xr.DataArray, norm: xr.DataArray, how: Callable[..., Any]) -> xr.DataArray:
    """Values of query heads `(..., head, ...)` gathered by the key head that serves them, with the labels of `norm`.

    how: `np.mean` or `np.sum`. Raises `UserError` where heads do not divide over key heads.
    """
    heads, kv_heads = values.sizes["head"], norm.sizes["kv_head"]
    if heads % kv_heads:
        raise UserError(f"{heads} query heads do not divide over {kv_heads} key heads: are they of one sample?")
    bare = values.drop_vars("head", errors="ignore")
    gathered: xr.DataArray = bare.coarsen(head=heads // kv_heads).reduce(how).rename(head="kv_head")
    return gathered.assign_coords(kv_head=norm["kv_head"].values)


def _norms(sample: xr.Dataset) -> xr.DataArray:
    if "key_norm" not in sample:
        raise UserError("this trace has no key norms: record it again with --norms (Recording(norms=True))")
    return sample["key_norm"]
