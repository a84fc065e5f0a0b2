"""Kinds of sinks: of each head's strongest key the value's norm, beside what it receives (arXiv 2606.08105).

Of one sample, from its final pass (`sinkscope trace --kinds`). The marker tells the kind, the colour the layer; a small
dot is a strongest key that is no sink. Dashed lines are the limits of the kinds; an ordinary value stands at 1.

Where it misleads: of a sink above the upper line the picture does not show why it is mixed or broadcasts: that is the
rank of the head's output. Heads that share values lie on one height. See `sinks.kinds`.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, ListedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator

from sinkscope.report.figures import style
from sinkscope.report.figures.inputs import RULE, Inputs, found_in
from sinkscope.report.figures.labels import caption, entitle, made_by, sample_label
from sinkscope.report.figures.making import figure
from sinkscope.sinks import KINDS, SinkRule, sink_kinds
from sinkscope.sinks.kinds import BROADCAST_RANK, BROADCAST_RATIO, NO_OP_RATIO, NO_SINK

MARKERS: Mapping[str, tuple[str, float]] = {
    "no-op": ("o", 14),
    "broadcast": ("^", 18),
    "mixed": ("D", 10),
    NO_SINK: (".", 10),
}
"""Marker and size (square points) by kind."""
LIMITS = (
    f"no-op: value at most {NO_OP_RATIO:g}; broadcast: at least {BROADCAST_RATIO:g}, rank at most {BROADCAST_RANK:g}"
)
_LIGHTEST = 0.28
_ROOM = 1.25


@style.house_style
def kinds_scatter(sample: xr.Dataset, rule: SinkRule = RULE) -> Axes:
    """Draw the heads of one sample on a figure of their own, a column of a page wide.

    Returns the Axes. Raises `UserError` as `sink_kinds` does.
    """
    return _drawn({sample_label(sample): sink_kinds(sample, rule)}, rule)[0]


@figure("sink-kinds", "kinds of sinks: value norm beside received attention of each head's strongest key")
def kinds_scatters(inputs: Inputs) -> Figure:
    """One panel a trace, one scale of layers."""
    found, left_out = found_in(inputs.traced(), lambda one: sink_kinds(one.sample, inputs.rule))
    labels = {one.label: sample_label(one.sample) for one in inputs.traced()}
    return style.owner(_drawn({labels[label]: one for label, one in found.items()}, inputs.rule, left_out)[0])


def _drawn(found: Mapping[str, xr.Dataset], rule: SinkRule, left_out: Sequence[str] = ()) -> list[Axes]:
    drawn, axes = style.panels(len(found), height=2.7, alone=style.COLUMN_CM / style.INCH)
    layers = Normalize(0, max(1.0, *(float(one["layer"].max()) for one in found.values())))
    for ax, (label, one) in zip(axes, found.items(), strict=True):
        paint_kinds(ax, one, layers)
        entitle(ax, label)
    _scale(axes, found.values())
    for ax in axes:
        ax.set_ylabel("value norm / the others' median")
    style.only_outer_labels(axes)
    bar = style.color_bar(axes, ScalarMappable(layers, layer_colors()), "layer")
    style.whole_ticks(bar.ax.yaxis)
    style.legend_above(drawn, _legend([*found.values()]), handle=1.0)
    caption(drawn, made_by(rule, None, "all", "final pass", LIMITS, *left_out))
    return axes


def layer_colors() -> Colormap:
    """The heat map's colours without those that are too light for a marker."""
    return ListedColormap(style.heat_colors()(np.linspace(_LIGHTEST, 1, 256)), name="sinkscope-layers")


def paint_kinds(ax: Axes, found: xr.Dataset, layers: Normalize) -> None:
    """The points without title and legend."""
    depth = found["layer"].broadcast_like(found["kind"]).values
    for kind in (NO_SINK, *KINDS):
        here = ((found["kind"] == kind) & found["value_ratio"].notnull()).values
        marker, size = MARKERS[kind]
        ax.scatter(
            found["received"].values[here], found["value_ratio"].values[here], s=size, c=depth[here], norm=layers,
            cmap=layer_colors(), marker=marker, edgecolors="white", linewidths=0.3, clip_on=False, gid=kind,
            zorder=2 if kind == NO_SINK else 3,
        )  # fmt: skip
    for limit in (NO_OP_RATIO, BROADCAST_RATIO):
        ax.axhline(limit, color=style.SOFT, linewidth=0.6, linestyle=(0, (4, 2)), zorder=1, gid="limit")
    ax.axhline(1.0, color=style.BASE, linewidth=0.6, zorder=1)
    ax.set_xlabel("received by the strongest key")


def _scale(axes: Sequence[Axes], found: Iterable[xr.Dataset]) -> None:
    """One logarithmic axis for all panels; values of zero, which it has no place for, stand at its foot."""
    ratios = np.concatenate([one["value_ratio"].values.ravel() for one in found])
    ratios = ratios[np.isfinite(ratios) & (ratios > 0)]
    low, high = min([NO_OP_RATIO, *ratios]) / _ROOM, max([1.0, *ratios]) * _ROOM
    ticks = style.round_numbers(low, high)
    for ax in axes:
        ax.set_yscale("log", nonpositive="clip")
        ax.set_ylim(low, high)
        ax.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
        ax.yaxis.set_minor_locator(NullLocator())
        ax.set_xlim(0, 1)
        style.percent_axis(ax.xaxis)


def _legend(found: Sequence[xr.Dataset]) -> list[Line2D]:
    """An entry for every kind, with the number of heads in all panels."""
    entries = []
    for kind, (marker, size) in MARKERS.items():
        heads = sum(int((one["kind"] == kind).sum()) for one in found)
        label = f"{'no sink' if kind == NO_SINK else kind} ({heads})"
        entries.append(
            Line2D([], [], linestyle="none", marker=marker, markersize=size**0.5, color=style.INK, mew=0, label=label)
        )
    return entries
