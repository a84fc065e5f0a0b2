"""How scores are spread: a histogram of received attention, and which part of it the rule calls sinks (Fig. 3, 9).

Both axes are logarithmic: nearly all keys receive less than a fair share, and sinks are few. Every (sample, step,
layer, head, existing key) counts once. Scores below the axis are counted in its first bin.

Where it misleads: equal widths on a logarithmic axis are not equal ranges of scores; on scale "sum" one score is a
smaller share of the attention the more keys there are.
"""

from collections.abc import Iterable

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter
from numpy.typing import NDArray

from sinkscope.errors import UserError
from sinkscope.report.figures.inputs import RULE, Inputs, views, with_first
from sinkscope.report.figures.labels import SCORES, caption, entitle, made_by, model_label
from sinkscope.report.figures.panels import fresh_axes, owner, panels
from sinkscope.report.figures.registry import figure
from sinkscope.report.figures.style import BASE, INK, SINK, house_style
from sinkscope.sinks import SinkRule, scaled
from sinkscope.sinks.blocks import step_slices, widened
from sinkscope.sinks.tables.base import View

LOWEST = {"sum": 1e-2, "percent": 1e-2, "mean": 1e-4}
"""Where the first bin begins."""
_HIGHEST = {"sum": 1e5, "percent": 1e2, "mean": 1.0}
_PER_DECADE = 8
_STROKES = 4 * "\\"


def count_scores(
    samples: Iterable[xr.Dataset], rule: SinkRule, *, group: str = "all", scale: str = "sum"
) -> xr.Dataset:
    """Histogram of scores: `keys` and `sinks` `(bin,)`, with the edges `low` and `high` of every bin.

    Bins reach to the highest score there is. Raises `UserError` when no sample has a step with these queries.
    """
    low, high = LOWEST[scale], _HIGHEST[scale]
    edges = np.geomspace(low, high, round(_PER_DECADE * np.log10(high / low)) + 1)
    counts: NDArray[np.int64] = np.zeros((2, edges.size - 1), dtype=np.int64)
    for view in views(samples, rule, group):
        counts += _count(view, scale, edges)
    if not counts[0].any():
        raise UserError(f"no received attention by queries {group!r} at any step")
    last = int(np.flatnonzero(counts[0]).max()) + 1
    return xr.Dataset(
        {name: ("bin", row[:last]) for name, row in zip(("keys", "sinks"), counts, strict=True)},
        coords={"low": ("bin", edges[:last]), "high": ("bin", edges[1 : last + 1])},
    )


def _count(view: View, scale: str, edges: NDArray[np.float64]) -> NDArray[np.int64]:
    """Keys and sinks in every bin, `(2, bin)`, a few steps at a time."""
    received, sinks = view.received, view.sinks
    counts: NDArray[np.int64] = np.zeros((2, edges.size - 1), dtype=np.int64)
    for part in step_slices(received.sizes["step"], received[0].size):
        scores = scaled(widened(received.isel(step=part)), scale).values
        inside = np.clip(scores, edges[0], edges[-1])
        for row, which in enumerate((np.isfinite(scores), sinks.isel(step=part).values)):
            counts[row] += np.histogram(inside[which], edges)[0]
    return counts


@house_style
def score_histogram(
    samples: Iterable[xr.Dataset],
    rule: SinkRule = RULE,
    *,
    group: str = "all",
    scale: str = "sum",
    ax: Axes | None = None,
) -> Axes:
    """Draw the histogram of all these samples of one model. Returns the axes, `ax` or new ones."""
    first, every = with_first(samples)
    counts = count_scores(every, rule, group=group, scale=scale)
    ax = fresh_axes() if ax is None else ax
    paint(ax, counts, scale)
    ax.set_ylabel("share of keys")
    entitle(ax, model_label(first), made_by(rule, scale, group, "every step, layer, head and key"))
    return ax


def paint(ax: Axes, counts: xr.Dataset, scale: str) -> None:
    """The histogram without its title; shares are of all keys."""
    total = int(counts["keys"].sum())
    edges = np.append(counts["low"].values, counts["high"].values[-1])
    sinks = int(counts["sinks"].sum())
    ax.stairs(counts["keys"].values / total, edges, fill=True, color=BASE, label=f"all {total:,} keys")
    ax.stairs(
        counts["sinks"].values / total, edges, fill=True, facecolor=SINK, edgecolor=INK, hatch=_STROKES, linewidth=0.4,
        label=f"sinks: {sinks / total:.2%}",
    )  # fmt: skip
    ax.set_xscale("log")
    ax.set_yscale("log")
    if scale == "sum":
        ax.axvline(1.0, color=INK, linewidth=0.7, linestyle=(0, (4, 2)), label="a fair share")
    ax.set_xlabel(f"score: {SCORES[scale]}")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.set_ylim(top=1.0)
    ax.minorticks_off()
    ax.legend(loc="upper right", handlelength=1.2)


@figure("scores", "histogram of scores, sinks apart (Fig. 3, 9)")
def score_histograms(inputs: Inputs) -> Figure:
    """One panel a trace, over all its samples."""
    subjects = inputs.traced()
    if len(subjects) == 1:
        samples = subjects[0].samples
        return owner(score_histogram(samples, inputs.rule, group=inputs.group, scale=inputs.scale))
    drawn, axes = panels(len(subjects), height=2.3)
    for ax, subject in zip(axes, subjects, strict=True):
        counts = count_scores(subject.samples, inputs.rule, group=inputs.group, scale=inputs.scale)
        paint(ax, counts, inputs.scale)
        entitle(ax, subject.label)
    axes[0].set_ylabel("share of keys")
    caption(drawn, made_by(inputs.rule, inputs.scale, inputs.group, "every step, layer, head and key"))
    return drawn
