"""Key norms beside attention: curves layer by layer, and maps of the rank correlation by key head and by step.

The curves' bands are 95 % intervals over samples; grey is what a random order gives. In the maps blue is what key-norm
compression counts on, low norms that receive much; orange is the opposite, white is none. All need traces with key
norms (`--norms`).

Where it misleads: half of the keys are kept in the two lower panels of curves; another ratio is another figure, see
`sinkscope norms --ratio`. In grey the two signs of the maps look alike, and a step that few samples reach is averaged
over those alone.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from sinkscope.compression.diagnostics import NormReport, Which, norm_correlation, summarise_norms
from sinkscope.report.figures import style
from sinkscope.report.figures.inputs import RULE, Inputs, firsts_of, with_first
from sinkscope.report.figures.labels import caption, entitle, image_panels, made_by, model_label, unlike_steps
from sinkscope.report.figures.making import figure
from sinkscope.sinks import SinkRule
from sinkscope.sinks.tables.base import add_sums, per

KEPT = 0.5
PANELS = {
    "correlation": "rank correlation of norm and attention\n(below 0: low norms receive much)",
    "loss": "attention loss, relative to a random order's\n(0 ideal, 1 random, 2 worst)",
    "overlap": "sinks among the lower half of the norms",
    "stability": "kept half, overlap with the step before",
}
_MARKERS = 12
"""On a line, about."""


def norm_reports(
    samples: Mapping[str, Iterable[xr.Dataset]], rule: SinkRule = RULE, *, group: str = "all"
) -> dict[str, NormReport]:
    """The tables behind the figure, of the samples under each label. Raises `UserError` where norms are missing."""
    return {label: summarise_norms(some, rule, ratio=KEPT, which=Which(group=group)) for label, some in samples.items()}


@style.house_style
def norm_curves(
    samples: Mapping[str, Iterable[xr.Dataset]], rule: SinkRule = RULE, *, group: str = "all"
) -> tuple[Axes, ...]:
    """Draw four panels on a figure of their own, one line in each for the samples under each label.

    Returns the Axes.
    """
    firsts, every = firsts_of(samples)
    reports = norm_reports(every, rule, group=group)
    drawn, axes = style.panels(len(PANELS), height=2.2, across=2, share=False)
    for ax, (name, title) in zip(axes, PANELS.items(), strict=True):
        for number, (label, report) in enumerate(reports.items()):
            paint_layers(ax, report.tables[name], name, label, number)
        entitle(ax, title if len(reports) > 1 else f"{next(iter(reports))}: {title}")
        ax.set_xlabel("layer")
        style.whole_ticks(ax.xaxis)
    for ax in axes[2:]:
        ax.set_ylim(0, 1)
        style.percent_axis(ax.yaxis)
    style.only_outer_labels(axes)
    if len(reports) > 1:
        style.legend_above(drawn, [line for line in axes[0].lines if line.get_gid() == "mean"])
    said = (f"kept: {KEPT:g} of the keys", "grey: a random order", *unlike_steps(firsts))
    caption(drawn, made_by(rule, None, group, *said))
    return tuple(axes)


def paint_layers(ax: Axes, table: xr.Dataset, name: str, label: str, number: int) -> None:
    """One line with its interval, and what chance gives."""
    color, dash, marker = style.LINES[number % len(style.LINES)]
    layers = table["layer"].values
    if name == "correlation":
        ax.fill_between(layers, table["chance_low"], table["chance_high"], color=style.PAPER, linewidth=0, zorder=0)
    else:
        chance = np.ones(len(layers)) if name == "loss" else table["chance"].values
        ax.plot(layers, chance, color=style.BASE, linewidth=0.8, gid="chance", zorder=1)
    ax.fill_between(layers, table["low"], table["high"], color=color, alpha=0.2, linewidth=0)
    every = max(1, len(layers) // _MARKERS)
    ax.plot(
        layers, table[name], color=color, linestyle=dash, marker=marker, label=label, gid="mean", clip_on=False,
        in_layout=False, markevery=(number % every, every),
    )  # fmt: skip


@figure("key-norms", "key norms beside attention by layer: correlation, attention loss, sinks, stability")
def all_norm_curves(inputs: Inputs) -> Figure:
    """One line a trace in each panel."""
    axes = norm_curves(inputs.by_label(), inputs.rule, group=inputs.group)
    found = axes[0].get_figure(root=True)
    assert found is not None
    return found


COLORS = LinearSegmentedColormap.from_list(
    "sinkscope-signs", ["#003f57", style.COMMIT, "#ffffff", style.SINK, "#6e2200"]
)
BAR = "rank correlation\n(below 0: low norms receive much)"
RANKS = "Spearman's of key norm and received attention"
AVERAGED = {"kv_head": "averaged over steps and samples", "step": "averaged over heads and samples"}
"""What is averaged, by what the map is over besides layers."""
_LABEL = {"kv_head": "key head", "step": "step"}


def correlations(samples: Iterable[xr.Dataset], *, across: str, group: str = "all") -> xr.DataArray:
    """Mean correlation `(layer, across)`; `across` is "kv_head" or "step". Raises `UserError` where norms are missing.

    Steps without a sample that has a correlation there are NaN.
    """
    total = reduce(
        add_sums, (_correlation_sums(sample, across, group) for sample in samples if sample.sizes.get("step", 0))
    )
    return per(total["sum"], total["rows"]).transpose("layer", across)


def _correlation_sums(sample: xr.Dataset, across: str, group: str) -> xr.Dataset:
    found = norm_correlation(sample, Which(group=group)).drop_attrs()
    rest = [dim for dim in found.dims if dim not in ("layer", across)]
    return xr.Dataset({"sum": found.sum(rest), "rows": found.notnull().sum(rest)})


@style.house_style
def norm_map(
    samples: Iterable[xr.Dataset], *, across: str = "kv_head", group: str = "all", ax: Axes | None = None
) -> Axes:
    """Draw all these samples of one model, layer by key head or by step. Returns the axes, `ax` or new ones."""
    first, every = with_first(samples)
    shown = correlations(every, across=across, group=group)
    ax = style.fresh_axes(3.8, 3.2) if ax is None else ax
    image = paint_signs(ax, shown, across, farthest([shown]))
    ax.set_ylabel("layer")
    style.color_bar([ax], image, BAR)
    entitle(ax, model_label(first), _made_by(group, across))
    return ax


def farthest(shown: Sequence[xr.DataArray]) -> float:
    """The largest distance from 0, at least a tenth."""
    return max(0.1, *(float(abs(one).max()) for one in shown))


def paint_signs(ax: Axes, shown: xr.DataArray, across: str, reach: float) -> AxesImage:
    """The map without its title; colours from -reach to reach."""
    style.hatched(ax)
    values = np.ma.masked_invalid(shown.values)
    image = ax.imshow(values, norm=Normalize(-reach, reach), cmap=COLORS, aspect="auto", origin="lower")
    ax.set_xlabel(_LABEL[across])
    style.label_places(ax, x=shown[across].values, y=shown["layer"].values)
    return image


def _made_by(group: str, across: str) -> str:
    return f"{RANKS}; queries: {group}; {AVERAGED[across]}"


def _correlation_maps(inputs: Inputs, across: str) -> Figure:
    """One panel a trace, one scale of colours."""
    subjects = inputs.traced()
    shown = [correlations(one.samples, across=across, group=inputs.group) for one in subjects]
    titles, reach = [one.label for one in subjects], farthest(shown)
    drawn, _ = image_panels(
        shown, titles, lambda ax, one: paint_signs(ax, one, across, reach), height=2.5, bar=BAR, y="layer"
    )
    caption(drawn, _made_by(inputs.group, across))
    return drawn


@figure("key-norm-heads", "rank correlation of key norm and attention, by layer and key head")
def key_norm_heads(inputs: Inputs) -> Figure:
    """Averaged over steps and samples."""
    return _correlation_maps(inputs, "kv_head")


@figure("key-norm-steps", "rank correlation of key norm and attention, by layer and step")
def key_norm_steps(inputs: Inputs) -> Figure:
    """Averaged over heads and samples."""
    return _correlation_maps(inputs, "step")
