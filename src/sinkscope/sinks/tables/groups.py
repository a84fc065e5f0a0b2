"""Tables that compare: groups of queries, and Sink_k of autoregressive models; and norms at sinks against elsewhere.

The groups are compared in the dims they share: where the recorder averaged groups over heads, "all" is averaged too,
so its numbers differ from the other tables'. Every (sample, step, layer[, head]) at which the group has queries counts
once.
"""

import numpy as np
import xarray as xr

from sinkscope.errors import UserError
from sinkscope.sinks.ar import FINAL_PASS, GU_EPSILON, attends_both_ways, sink_k, square_pass
from sinkscope.sinks.blocks import by_step_blocks
from sinkscope.sinks.find import row_counts, tops
from sinkscope.sinks.motion import jaccard
from sinkscope.sinks.queries import UNIONS, atoms_of, head_mean, received_by
from sinkscope.sinks.rules import KeyCounts, SinkRule
from sinkscope.sinks.scales import anywhere, checked, key_exists, own_received
from sinkscope.sinks.surroundings import Norm, norm_means, norm_sums
from sinkscope.sinks.tables.base import Table, View, Vocabulary, needs, per

TOGETHER = 2**19
"""Numbers recorded by group in a slice of steps: of every union as many more are made."""
SHOWN_KEYS = 16
"""How many of the first keys the table of Sink_k shows."""


def measure_groups(view: View) -> xr.Dataset:
    by_head = "head" in view.sample["received_by_group"].dims
    if view.group == "all" and "head_mean" in view.read and not by_head:
        whole = view.read["head_mean"]
    else:
        whole = head_mean(view.sample)
    exists = view.exists if view.group == "all" else key_exists(own_received(view.sample))
    names = _asking(view.sample)
    parts = view.sample[["received_by_group", "queries"]].assign(whole=whole, exists=exists)

    def look(part: xr.Dataset) -> xr.Dataset:
        groups = [part["whole"].expand_dims(group=["all"])]
        if names:
            groups.append(received_by(part, names, part["exists"]))
        return _rows(xr.concat(groups, "group", coords="minimal", compat="override", join="exact"), view.rule)

    found = by_step_blocks(look, parts, TOGETHER)
    keys = found["keys"].values
    view.rule.refuse(KeyCounts(fewest=int(keys[keys > 0].min()), most=int(keys.max())))
    sums = found.map(lambda rows: rows.sum([dim for dim in rows.dims if dim != "group"]))
    return sums.drop_vars([name for name in sums.coords if name != "group"])


def _asking(sample: xr.Dataset) -> list[str]:
    """The recorded groups that ever asked, and the unions of such."""
    asked = sample["queries"].sum("step") > 0
    there = [str(name) for name in sample["group"].values[asked.values]]
    asking = {atom for name in there for atom in atoms_of(name)}
    return there + [name for name, atoms in UNIONS.items() if name != "all" and asking.intersection(atoms)]


def _rows(received: xr.DataArray, rule: SinkRule) -> xr.Dataset:
    """The rule applied to groups of queries at a few steps: what is summed of every step and every row."""
    there, where = received.notnull(), tops(checked(received))
    sinks = rule.marks(received)
    top = where["by_head_received" if "by_head_received" in where else "by_layer_received"]
    asked = anywhere(there).any("position")
    overlap = jaccard(sinks, sinks.sel(group="all", drop=True)).where(asked)
    return row_counts(sinks.assign_coords(exists=there)).assign(
        top_received=top,
        position=where["overall"].where(asked, 0),
        steps=asked,
        overlap=overlap,
        overlap_of=overlap.notnull(),
    )


def finish_groups(sums: xr.Dataset, _: Vocabulary) -> xr.Dataset:
    return xr.Dataset(
        {
            "steps": sums["steps"],
            "sinks": per(sums["sinks"], sums["rows"]),
            "share": per(sums["sinks"], sums["keys"]),
            "any": per(sums["any"], sums["rows"]),
            "top_received": per(sums["top_received"], sums["rows"]),
            "top_position": per(sums["position"], sums["steps"]),
            "jaccard_with_all": per(sums["overlap"], sums["overlap_of"]),
        }
    )


def no_whole_pass(view: View) -> str | None:
    try:
        both_ways = attends_both_ways(view.sample)
        source, _ = square_pass(view.sample)
    except UserError as error:
        return str(error)
    if both_ways and source != FINAL_PASS:
        return "made for autoregressive models: record the final pass to see it for this one"
    return None


def measure_sink_k(view: View) -> xr.Dataset:
    share = sink_k(view.sample).isel(position=slice(SHOWN_KEYS))
    share = share.drop_vars([name for name in share.coords if name != "position"])
    share = share.expand_dims(source=[share.attrs["source"]])
    return xr.Dataset({"sink_k": share, "samples": xr.ones_like(share, dtype=np.int64)})


def _norms(of: Norm) -> Table:
    def measure(view: View) -> xr.Dataset:
        sums = norm_sums(view.sample, view.sinks, of)
        return sums.drop_vars([name for name in sums.coords if name != "layer"])

    about = f"mean {of} norm at sinks, elsewhere, and the ratio, by layer"
    return Table(f"{of}-norms", about, measure, lambda sums, _: norm_means(sums), needs(f"{of}_norm"))


TABLES = [
    Table(
        "groups",
        "the rule applied to the attention paid by each group of queries, means over heads unless all were recorded, "
        "and its overlap with that of all",
        measure_groups,
        finish_groups,
        needs("received_by_group", "queries"),
    ),
    Table(
        "sink-k",
        "share of (layer, head) whose alpha_k exceeds 0.3, first keys (2410.10781)",
        measure_sink_k,
        lambda sums, _: sums.assign(sink_k=per(sums["sink_k"], sums["samples"])),
        no_whole_pass,
        lambda _: {"rule": "sink-k", "epsilon": GU_EPSILON, "group": "all"},
    ),
    _norms("value"),
    _norms("key"),
]
