"""Received attention by who asks: a heat map for each group of queries, on one scale of colours.

The groups are those of `sinks.queries`: the prompt, what is committed, the current block's committed and masked
positions, and later masks. At a step at which a group has no query its map is empty.

Where it misleads: the groups are means over heads unless a trace was recorded with every head; a group of one query is
sharper than one of many.
"""

from collections.abc import Sequence

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from sinkscope.errors import UserError
from sinkscope.report.figures.heat_map import depth_lines, legend_entries, paint, profile
from sinkscope.report.figures.inputs import Inputs
from sinkscope.report.figures.labels import SCORES, caption, entitle, made_by, sample_label
from sinkscope.report.figures.panels import color_bar, legend_above, log_colors, only_outer_labels, panels
from sinkscope.report.figures.registry import figure
from sinkscope.sinks.queries import ATOMS, group_size

ACROSS = 3


def asking_groups(sample: xr.Dataset) -> list[str]:
    """The groups that have a query at any step, "all" first.

    Raises `UserError` where groups were not recorded, or never more than one asks at a step: "all" then shows as much.
    """
    sizes = {group: group_size(sample, group).values for group in ATOMS if group in _recorded(sample)}
    asked = np.array([size > 0 for size in sizes.values()])
    if asked.sum(0).max(initial=0) < 2:
        raise UserError("at every step all queries are of one group, so the heat map shows as much")
    return ["all", *(group for group, size in sizes.items() if size.any())]


def _recorded(sample: xr.Dataset) -> set[str]:
    if "received_by_group" not in sample or "queries" not in sample:
        raise UserError("received attention was not recorded by group (sinkscope trace --by-group mean)")
    return {str(name) for name in sample["group"].values}


def _divided(samples: Sequence[xr.Dataset]) -> list[tuple[xr.Dataset, str]]:
    """Samples with each of their groups. Raises `UserError` where none can be divided, with the last reason."""
    found: list[tuple[xr.Dataset, str]] = []
    reason = UserError("no trace was given")
    for sample in samples:
        try:
            found += [(sample, group) for group in asking_groups(sample)]
        except UserError as error:
            reason = error
    if not found:
        raise reason
    return found


@figure("groups", "received attention by group of queries over steps, sinks ringed")
def group_maps(inputs: Inputs) -> Figure:
    """One panel a group, trace after trace; traces whose queries are never of two groups have none."""
    found = _divided([subject.sample for subject in inputs.traced()])
    shown = [profile(sample, inputs.rule, group=group, scale=inputs.scale) for sample, group in found]
    drawn, axes = panels(len(shown), height=2.2, across=ACROSS, share=False)
    norm = log_colors([one.score.values for one in shown], min(one.fair for one in shown))
    images = [paint(ax, one, norm) for ax, one in zip(axes, shown, strict=True)]
    names = list(dict.fromkeys(sample_label(sample) for sample, _ in found))
    for ax, (sample, group) in zip(axes, found, strict=True):
        entitle(ax, f"queries: {group}" if len(names) == 1 else f"{sample_label(sample)}\nqueries: {group}")
        ax.set_ylabel("position")
    only_outer_labels(axes, ACROSS)
    color_bar(axes, images[-1], f"attention received from the group\n{SCORES[inputs.scale]}")
    legend_above(drawn, legend_entries(shown))
    settings = made_by(inputs.rule, inputs.scale, "as named", *depth_lines(shown))
    caption(drawn, f"{', '.join(names)}; {settings}")
    return drawn
