"""Where the strongest key stands, step by step, for one model or several (Fig. 7).

The strongest key is that of the mean over layers and heads; steps without one (a group of queries that sat out) leave a
gap. Thin lines mark where prompts end. Position 0 is at the top, as in the heat map.

Where it misleads: there is a strongest key in a flat map too; the line says nothing of its strength.
"""

from collections.abc import Mapping

import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sinkscope.report.figures.heat_map import depth_line
from sinkscope.report.figures.inputs import Inputs
from sinkscope.report.figures.labels import entitle, made_by, sample_label
from sinkscope.report.figures.panels import fresh_axes, owner, whole_ticks
from sinkscope.report.figures.registry import figure
from sinkscope.report.figures.style import LINES, SOFT, house_style
from sinkscope.sinks import received_from, sink_positions
from sinkscope.sinks.find import NOWHERE

STRONGEST = "the strongest key"
_MARKERS = 16
"""On a line, about."""
_WIDEST = 1.8
"""Points; each further line is narrower, so that lines at the same place are all seen."""


@house_style
def top_positions(samples: Mapping[str, xr.Dataset], *, group: str = "all", ax: Axes | None = None) -> Axes:
    """Draw one line for each sample, by its label. Returns the axes, `ax` or new ones."""
    ax = fresh_axes(4.6, 2.7) if ax is None else ax
    last = 0
    for number, (label, sample) in enumerate(samples.items()):
        color, dash, marker = LINES[number % len(LINES)]
        where = sink_positions(sample, received=received_from(sample, group))["overall"]
        known = where.where(where != NOWHERE)
        every = max(1, known.sizes["step"] // _MARKERS)
        ax.plot(
            known["step"], known, color=color, linestyle=dash, marker=marker, label=label, clip_on=False,
            in_layout=False, linewidth=max(0.8, _WIDEST - 0.5 * number), markevery=(number % every, every),
        )  # fmt: skip
        last = max(last, int(sample["position"].max()))
    for length in sorted({int(sample.attrs.get("prompt_length", 0)) for sample in samples.values()} - {0}):
        ax.axhline(length - 0.5, color=SOFT, linewidth=0.5, gid="prompt", zorder=1)
    ax.set_ylim(last + 0.5, -0.5)
    ax.set_xlabel("step")
    ax.set_ylabel("position of the strongest key")
    whole_ticks(ax.xaxis)
    whole_ticks(ax.yaxis)
    if len(samples) > 1:
        ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    one = next(iter(samples.values()))
    title = sample_label(one) if len(samples) == 1 else "position of the strongest key"
    entitle(ax, title, made_by(STRONGEST, None, group, depth_line(one), "thin line: end of a prompt"))
    return ax


@figure("top-position", "position of the strongest key by step, for all traces (Fig. 7)")
def all_top_positions(inputs: Inputs) -> Figure:
    """One line a trace, on the same axes."""
    samples = {f"{one.label}: {one.sample.attrs['id']}": one.sample for one in inputs.traced()}
    return owner(top_positions(samples, group=inputs.group))
