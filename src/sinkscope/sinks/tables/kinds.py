"""The table of kinds of sinks, by layer: how many heads have which, and how they look beside ordinary keys.

Counts are means over samples. Of the measures each head has its mean over the samples in which its strongest key is a
sink; a layer shows the median over such heads.
"""

import numpy as np
import xarray as xr

from sinkscope.sinks.kinds import KINDS, LIMITS, WITHOUT, has_kinds, sink_kinds
from sinkscope.sinks.rules import SinkRule
from sinkscope.sinks.tables.base import Table, View, Vocabulary, per

COUNTED = {kind: kind.replace("-", "_") for kind in KINDS}
CHANCES = ("no_op_chance", "broadcast_chance")
MEASURES = (
    "value_ratio", "output_share", "rank", "rank_without", "received", "output_ratio", "norm_share",
    "output_share_others", "norm_share_others", "rank_without_other",
)  # fmt: skip


def measure_kinds(view: View) -> xr.Dataset:
    found = sink_kinds(view.sample, view.rule)
    sink = found["sink"]
    sums = {"sinks": sink, **{name: found["kind"] == kind for kind, name in COUNTED.items()}}
    measured = {name: found[name].astype(np.float64).where(sink) for name in (*MEASURES, *CHANCES)}
    return xr.Dataset(
        {
            "samples": 1,
            **{name: one.astype(np.int64) for name, one in sums.items()},
            **{name: one.fillna(0.0) for name, one in measured.items()},
            **{f"{name}_of": one.notnull().astype(np.int64) for name, one in measured.items()},
        }
    )


def finish_kinds(sums: xr.Dataset, _: Vocabulary) -> xr.Dataset:
    order = ("sinks", "no_op", "no_op_chance", "broadcast", "broadcast_chance", "mixed")
    counts = {name: per(sums[name].sum("head"), sums["samples"]) for name in order}
    medians = {name: per(sums[name], sums[f"{name}_of"]).median("head") for name in MEASURES}
    return xr.Dataset({**counts, **medians})


def state_kinds(rule: SinkRule) -> dict[str, str | float | int]:
    return {**rule.settings(), "group": "all", **LIMITS}


def no_kinds(view: View) -> str | None:
    return None if has_kinds(view.sample) else WITHOUT


TABLES = [
    Table(
        "kinds",
        "heads whose strongest key in the final pass is a sink, by kind (2606.08105); chance: so many, were any other "
        "key in its place; medians over these heads: its value's norm over that of the others, share of the output "
        "through it, rank of the output with and without it",
        measure_kinds,
        finish_kinds,
        no_kinds,
        state_kinds,
    ),
]
