"""Kinds of sinks: those that do nothing, and those that tell every query the same (Fesser et al., arXiv 2606.08105).

    kinds = sink_kinds(sample, Excess(epsilon=3.0))
    kinds["kind"], kinds["value_ratio"], kinds["output_share"]         # (layer, head)

Of every head the strongest key of the final pass (`Recording(kinds=True)`) is looked at. Where the rule calls it a sink
it is of one of these kinds, by the limits below:

- `no-op`: its value is small, so that the attention parked there writes next to nothing;
- `broadcast`: its value is not small, and the head's output has a low rank, as all queries are told the same;
- `mixed`: neither.

The measures are those of `attention.outputs`, with `value_ratio`, the norm of the key's value over the median of the
others'. Each stands beside what an ordinary key gives: the median of the other keys' shares, the rank without the
middle one of the others, and how many of the other keys would pass for a kind (`..._chance`).

Where it misleads: a low rank belongs to the head, not to a key. The outputs of many a head are of nearly one direction
with or without its sink: compare `rank` and `rank_without`, and `broadcast` with its chance. A no-op may give most of
what its head writes, where that is next to nothing: see `output_ratio`. Heads that share values (grouped-query
attention) share the value's norm. The authors take the mean of the other values for the median, and
look at the output after its projection, where a vision transformer scales it too; a trace holds the head's own.
"""

from typing import Any

import numpy as np
import xarray as xr

from sinkscope.errors import UserError
from sinkscope.sinks.find import mark_sinks
from sinkscope.sinks.rules import SinkRule

NO_OP_RATIO = 0.2
"""A no-op's value has at most this part of an ordinary value's norm. This limit and the next two are the authors', of
`vit_causal/common.py` and `lejepa_sinks/sink_table.py` in github.com/KempnerInstitute/attention_sink."""
BROADCAST_RATIO = 0.5
"""The value of a sink that broadcasts has at least this part."""
BROADCAST_RANK = 1.5
"""The output of a head that broadcasts has at most this stable rank."""
LIMITS = {"no_op_ratio": NO_OP_RATIO, "broadcast_ratio": BROADCAST_RATIO, "broadcast_rank": BROADCAST_RANK}

KINDS = ("no-op", "broadcast", "mixed")
NO_SINK = "none"
"""The kind where the strongest key is no sink."""
ABSENT = "absent"
"""Where a layer has fewer heads than others, and so no such head."""
_RECORDED = ("final_received", "final_value_norm", "final_output_share", "final_rank")
WITHOUT = "the trace has no outputs of heads: record it anew with --kinds (in Python Recording(kinds=True))"


def sink_kinds(sample: xr.Dataset, rule: SinkRule) -> xr.Dataset:
    """The strongest key of each head in the final pass and what kind of sink it is, `(layer, head)`.

    `position`, `received`, `sink` (boolean: by the rule), `kind` (`no-op`, `broadcast`, `mixed`, `none`, or `absent`
    where a layer lacks the head);
    `value_ratio`, `output_ratio` (mean norm of the outputs, over the same median), `norm_share`, `output_share`,
    `rank`, `rank_without`; `norm_share_others`, `output_share_others` (medians of the other keys),
    `rank_without_other`; `no_op_chance`, `broadcast_chance`: the share of the other keys that would be of this kind in
    the strongest one's place. NaN where there is no other key, or no output.

    Raises `UserError` where the trace was recorded without, and when the rule can never fire.
    """
    if not has_kinds(sample):
        raise UserError(WITHOUT)
    received, top = sample["final_received"], sample["final_top"].astype(np.int64)
    norm, shares = sample["final_value_norm"].astype(np.float64), sample[["final_norm_share", "final_output_share"]]
    others = received.notnull() & (received["position"] != top)
    usual = norm.where(others).median("position")
    ratios = norm / usual.where(usual > 0)
    rank, ratio = sample["final_rank"], _at(ratios, top)
    sink = _at(mark_sinks(received, rule).drop_vars("exists"), top)
    no_op, broadcast = ratios <= NO_OP_RATIO, (ratios >= BROADCAST_RATIO) & (rank <= BROADCAST_RANK)
    where: Any = xr.where
    kind = where(_at(no_op, top), KINDS[0], where(_at(broadcast, top), KINDS[1], KINDS[2]))
    own = {str(name).removeprefix("final_"): _at(values, top) for name, values in shares.items()}
    usual_shares = {
        f"{str(name).removeprefix('final_')}_others": values.where(others).median("position")
        for name, values in shares.items()
    }
    found = xr.Dataset(
        {
            "position": top,
            "received": _at(received, top),
            "sink": sink,
            "kind": kind.where(sink, NO_SINK).where(top >= 0, ABSENT),
            "value_ratio": ratio,
            "output_ratio": sample["final_output_norm"] / usual.where(usual > 0),
            **own,
            "rank": rank,
            "rank_without": sample["final_rank_without_top"],
            **usual_shares,
            "rank_without_other": sample["final_rank_without_other"],
            "no_op_chance": no_op.where(others).mean("position"),
            "broadcast_chance": broadcast.where(others).mean("position"),
        }
    ).drop_attrs()
    found.attrs = {**rule.settings(), "group": "all", **LIMITS}
    return found


def has_kinds(sample: xr.Dataset) -> bool:
    """Whether the sample was recorded with what tells kinds of sinks apart, and is finished."""
    return all(name in sample for name in _RECORDED)


def _at(values: xr.DataArray, top: xr.DataArray) -> xr.DataArray:
    """Values `(layer, head, position)` at each head's strongest key; NaN, or False, of a head that a layer lacks."""
    found = values.sel(position=top.clip(min=0)).drop_vars("position")
    there = top >= 0
    return found & there if found.dtype == bool else found.where(there)
