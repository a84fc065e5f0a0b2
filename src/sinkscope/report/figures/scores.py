"""Scores of received attention: their histogram (Fig. 3, 9), the keys that are no sinks by epsilon (Fig. 10), and the
strongest key of every layer and head (Fig. 5).

In the first two, every (sample, step, layer, head, existing key) counts once. The histogram's axes are logarithmic:
nearly all keys receive less than a fair share, and sinks are few. Scores below the axis are counted in its first bin.

Where it misleads: equal widths on a logarithmic axis are not equal ranges of scores; on scale "sum" one score is a
smaller share of the attention the more keys there are. Nearly all keys are no sinks at any epsilon, because most
receive next to nothing; that axis does not begin at 0. The strongest key by layer and head need not be the same one
from step to step, nor a sink by any rule.
"""

from collections.abc import Iterable, Mapping

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import FuncFormatter
from numpy.typing import NDArray

from sinkscope.errors import UserError
from sinkscope.report.figures import style
from sinkscope.report.figures.inputs import RULE, Inputs, firsts_of, views, with_first
from sinkscope.report.figures.labels import SCORES, caption, entitle, image_panels, made_by, model_label, unlike_steps
from sinkscope.report.figures.making import figure
from sinkscope.sinks import Excess, SinkRule, scaled, summarise
from sinkscope.sinks.blocks import step_slices, widened
from sinkscope.sinks.scales import require_scale
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


@style.house_style
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
    ax = style.fresh_axes() if ax is None else ax
    paint_histogram(ax, counts, scale, floor_of([counts]))
    settings = made_by(rule, scale, group, "every step, layer, head and key")
    entitle(ax, model_label(first), settings, lift=style.own_legend(ax, handle=1.2))
    return ax


def floor_of(counts: Iterable[xr.Dataset]) -> float:
    """Where an axis begins that shows the lowest bar of all these histograms: at half its height."""
    shares = [one[["keys", "sinks"]].to_array().values / int(one["keys"].sum()) for one in counts]
    return min(float(one[one > 0].min()) for one in shares) / 2


def paint_histogram(ax: Axes, counts: xr.Dataset, scale: str, floor: float) -> None:
    """The histogram without title and legend; shares are of all keys, the axis begins at `floor`."""
    total = int(counts["keys"].sum())
    edges = np.append(counts["low"].values, counts["high"].values[-1])
    sinks = int(counts["sinks"].sum())
    ax.stairs(counts["keys"].values / total, edges, fill=True, color=style.BASE, label=f"all {total:,} keys")
    ax.stairs(
        counts["sinks"].values / total, edges, fill=True, facecolor=style.SINK, edgecolor=style.INK, hatch=_STROKES,
        linewidth=0.4, label=f"sinks: {sinks / total:.2%}",
    )  # fmt: skip
    ax.set_xscale("log")
    ax.set_yscale("log")
    if scale == "sum":
        ax.axvline(1.0, color=style.INK, linewidth=0.7, linestyle=(0, (4, 2)), label="a fair share")
    ax.set_xlabel(f"score: {SCORES[scale]}")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.set_ylim(floor, 1.0)
    ax.minorticks_off()
    ax.set_ylabel("share of keys")


@figure("scores", "histogram of scores, sinks apart (Fig. 3, 9)")
def score_histograms(inputs: Inputs) -> Figure:
    """One panel a trace, over all its samples."""
    subjects = inputs.traced()
    drawn, axes = style.panels(len(subjects), height=2.3)
    counts = [count_scores(one.samples, inputs.rule, group=inputs.group, scale=inputs.scale) for one in subjects]
    for ax, subject, one in zip(axes, subjects, counts, strict=True):
        paint_histogram(ax, one, inputs.scale, floor_of(counts))
        entitle(ax, subject.label, lift=style.own_legend(ax, handle=1.2))
    style.only_outer_labels(axes)
    caption(drawn, made_by(inputs.rule, inputs.scale, inputs.group, "every step, layer, head and key"))
    return drawn


ANY_EPSILON = 0.0


@style.house_style
def epsilon_curves(
    samples: Mapping[str, Iterable[xr.Dataset]], *, group: str = "all", scale: str = "sum", ax: Axes | None = None
) -> Axes:
    """Draw one line for the samples under each label. Returns the axes, `ax` or new ones."""
    ax = style.fresh_axes(height=2.6) if ax is None else ax
    rule = Excess(ANY_EPSILON, scale)
    firsts, found = firsts_of(samples)
    for number, (label, some) in enumerate(found.items()):
        color, dash, marker = style.LINES[number % len(style.LINES)]
        share = summarise(some, rule, group, tables=["epsilon"]).tables["epsilon"]["non_sink_share"].squeeze("scale")
        epsilons = share["epsilon"].values
        ax.plot(
            epsilons, share, color=color, linestyle=dash, marker=marker, label=label, clip_on=False, in_layout=False
        )
        ax.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])
    ax.set_ylim(top=1.0)
    ax.set_xlabel(f"epsilon (scale {scale})")
    ax.set_ylabel("keys that are no sinks")
    style.percent_axis(ax.yaxis)
    title = next(iter(samples)) if len(samples) == 1 else "share of keys that are no sinks"
    lift = style.own_legend(ax) if len(samples) > 1 else 0.0
    said = ("every step, layer, head and key", *unlike_steps(firsts))
    entitle(ax, title, made_by("excess", scale, group, *said), lift=lift)
    return ax


@figure("epsilon", "share of keys that are no sinks by epsilon, for all traces (Fig. 10)")
def all_epsilon_curves(inputs: Inputs) -> Figure:
    """One line a trace, over all its samples, on the same axes."""
    return style.owner(epsilon_curves(inputs.by_label(), group=inputs.group, scale=inputs.scale))


STRONGEST = "the strongest key of each step"
AVERAGED = "averaged over steps and samples"


def strengths(samples: Iterable[xr.Dataset], *, group: str = "all", scale: str = "sum") -> xr.DataArray:
    """Score of the strongest key, mean over all steps of all samples, `(layer, head)`.

    Raises `UserError` where the group was recorded as a mean over heads.
    """
    require_scale(scale)
    report = summarise(samples, RULE, group, tables=["heads"])
    if "heads" in report.absent:
        raise UserError(report.absent["heads"])
    table = report.tables["heads"]
    share = table["top_received"].transpose("layer", "head")
    return {"sum": table["top_score"].transpose("layer", "head"), "percent": 100 * share, "mean": share}[scale]


@style.house_style
def layer_head_map(
    samples: Iterable[xr.Dataset], *, group: str = "all", scale: str = "sum", ax: Axes | None = None
) -> Axes:
    """Draw all these samples of one model. Returns the axes, `ax` or new ones."""
    first, every = with_first(samples)
    shown = strengths(every, group=group, scale=scale)
    ax = style.fresh_axes(3.8, 3.2) if ax is None else ax
    image = paint_strengths(ax, shown, float(shown.max()))
    ax.set_ylabel("layer")
    style.color_bar([ax], image, f"strongest key's score\n{SCORES[scale]}")
    entitle(ax, model_label(first), made_by(STRONGEST, scale, group, AVERAGED))
    return ax


def paint_strengths(ax: Axes, shown: xr.DataArray, highest: float) -> AxesImage:
    """The map without its title; colours from 0 to `highest`."""
    norm = Normalize(0, highest)
    image = ax.imshow(shown.values, norm=norm, cmap=style.heat_colors(), aspect="auto", origin="lower")
    ax.set_xlabel("head")
    style.label_places(ax, x=shown["head"].values, y=shown["layer"].values)
    return image


@figure("layer-heads", "score of the main sink by layer and head, averaged over steps (Fig. 5)")
def layer_head_maps(inputs: Inputs) -> Figure:
    """One panel a trace, one scale of colours."""
    subjects = inputs.traced()
    shown = [strengths(one.samples, group=inputs.group, scale=inputs.scale) for one in subjects]
    highest = float(np.max([one.max() for one in shown]))
    titles, bar = [one.label for one in subjects], f"strongest key's score\n{SCORES[inputs.scale]}"
    drawn, _ = image_panels(
        shown, titles, lambda ax, one: paint_strengths(ax, one, highest), height=2.5, bar=bar, y="layer"
    )
    caption(drawn, made_by(STRONGEST, inputs.scale, inputs.group, AVERAGED))
    return drawn
