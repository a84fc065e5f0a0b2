"""Share of keys that are no sinks under the excess rule, by epsilon (Fig. 10).

Every (sample, step, layer, head, existing key) counts once. An epsilon that no score can exceed leaves all keys.

Where it misleads: nearly all keys are no sinks at any epsilon, because most receive next to nothing; the axis does not
begin at 0.
"""

from collections.abc import Iterable, Mapping

import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sinkscope.report.figures.inputs import Inputs
from sinkscope.report.figures.labels import entitle, made_by
from sinkscope.report.figures.panels import fresh_axes, owner, percent_axis
from sinkscope.report.figures.registry import figure
from sinkscope.report.figures.style import LINES, house_style
from sinkscope.sinks import Excess, summarise

ANY_EPSILON = 0.0


@house_style
def epsilon_curves(
    samples: Mapping[str, Iterable[xr.Dataset]], *, group: str = "all", scale: str = "sum", ax: Axes | None = None
) -> Axes:
    """Draw one line for the samples under each label. Returns the axes, `ax` or new ones."""
    ax = fresh_axes(4.2, 2.6) if ax is None else ax
    rule = Excess(ANY_EPSILON, scale)
    for number, (label, some) in enumerate(samples.items()):
        color, dash, marker = LINES[number % len(LINES)]
        share = summarise(some, rule, group, tables=["epsilon"]).tables["epsilon"]["non_sink_share"].squeeze("scale")
        epsilons = share["epsilon"].values
        ax.plot(
            epsilons, share, color=color, linestyle=dash, marker=marker, label=label, clip_on=False, in_layout=False
        )
        ax.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])
    ax.set_ylim(top=1.0)
    ax.set_xlabel(f"epsilon (scale {scale})")
    ax.set_ylabel("keys that are no sinks")
    percent_axis(ax.yaxis)
    if len(samples) > 1:
        ax.legend(loc="lower right")
    title = next(iter(samples)) if len(samples) == 1 else "share of keys that are no sinks"
    entitle(ax, title, made_by("excess", scale, group, "every step, layer, head and key"))
    return ax


@figure("epsilon", "share of keys that are no sinks by epsilon, for all traces (Fig. 10)")
def all_epsilon_curves(inputs: Inputs) -> Figure:
    """One line a trace, over all its samples, on the same axes."""
    return owner(epsilon_curves(inputs.by_label(), group=inputs.group, scale=inputs.scale))
