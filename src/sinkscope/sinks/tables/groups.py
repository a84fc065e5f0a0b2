"""Tables that compare: groups of queries, and Sink_k of autoregressive models; and norms at sinks against elsewhere.

The groups are compared in the dims they share: where the recorder averaged groups over heads, "all" is averaged too,
so its numbers differ from the other tables'. Every (sample, step, layer[, head]) at which the group has queries counts
once.
"""

from collections.abc import Hashable, Iterator
from itertools import chain

import numpy as np
import xarray as xr

from sinkscope.errors import UserError
from sinkscope.sinks.ar import FINAL_PASS, GU_EPSILON, attends_both_ways, sink_k, square_pass
from sinkscope.sinks.find import layer_counts, mark_sinks, sink_positions
from sinkscope.sinks.motion import jaccard
from sinkscope.sinks.queries import UNIONS, atoms_of, head_mean, received_by
from sinkscope.sinks.scales import key_exists, own_received
from sinkscope.sinks.surroundings import Norm, norm_means, norm_sums
from sinkscope.sinks.tables.base import Table, View, Vocabulary, needs, per

TOGETHER = 3
"""More groups side by side are halved: all at once would take more memory than the marks of all heads."""
SHOWN_KEYS = 16
"""How many of the first keys the table of Sink_k shows."""


def measure_groups(view: View) -> xr.Dataset:
    by_head = "head" in view.sample["received_by_group"].dims
    if view.group == "all" and "head_mean" in view.read and not by_head:
        whole = view.read["head_mean"].rename("received").assign_attrs(group="all")
    else:
        whole = head_mean(view.sample)
    reference = mark_sinks(whole, view.rule)
    exists = view.exists if view.group == "all" else key_exists(own_received(view.sample))
    compared = chain([whole.expand_dims(group=["all"])], _batches(view.sample, exists))
    sums = [_sums(received, view, reference) for received in compared]
    return xr.concat(sums, dim="group", data_vars="all", coords="minimal", compat="override", join="exact")


def _batches(sample: xr.Dataset, exists: xr.DataArray) -> Iterator[xr.DataArray]:
    """Received attention by the groups that ever asked, side by side, or one by one where each has all heads."""
    asked = sample["queries"].sum("step") > 0
    there = [str(name) for name in sample["group"].values[asked.values]]
    asking = {atom for name in there for atom in atoms_of(name)}
    names = there + [name for name, atoms in UNIONS.items() if name != "all" and asking.intersection(atoms)]
    half = -(-len(names) // 2) if len(names) > TOGETHER else len(names)
    together = 1 if "head" in sample["received_by_group"].dims else half
    return (received_by(sample, names[at : at + together], exists) for at in range(0, len(names), together))


def _sums(received: xr.DataArray, view: View, reference: xr.DataArray) -> xr.Dataset:
    """The rule applied to groups of queries, `(group,)`."""
    sinks = mark_sinks(received, view.rule)
    where = sink_positions(view.sample, received=received)
    top = where["by_head_received" if "by_head_received" in where else "by_layer_received"]
    asked = where["keys"] > 0
    overlap = jaccard(sinks.drop_vars("exists"), reference.drop_vars("exists")).where(asked)
    sums = layer_counts(sinks, ("group",)).assign(
        top_received=top.sum(_all_but_group(top)),
        position=where["overall"].where(asked, 0).sum("step"),
        steps=asked.sum("step"),
        overlap=overlap.sum(_all_but_group(overlap)),
        overlap_of=overlap.notnull().sum(_all_but_group(overlap)),
    )
    return sums.drop_vars([name for name in sums.coords if name != "group"])


def _all_but_group(array: xr.DataArray) -> list[Hashable]:
    return [dim for dim in array.dims if dim != "group"]


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
