"""Key norms beside attention, layer by layer: correlation, attention loss, overlap with sinks, stability of what is
kept.

Bands are 95 % intervals over samples; grey is what a random order gives. Needs traces with key norms (`--norms`).

Where it misleads: half of the keys are kept in the two lower panels; another ratio is another figure, see
`sinkscope norms --ratio`.
"""

from collections.abc import Iterable, Mapping

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sinkscope.compression.diagnostics import NormReport, Which, summarise_norms
from sinkscope.report.figures.inputs import RULE, Inputs
from sinkscope.report.figures.labels import caption, entitle, made_by
from sinkscope.report.figures.panels import legend_above, only_outer_labels, panels, percent_axis, whole_ticks
from sinkscope.report.figures.registry import figure
from sinkscope.report.figures.style import BASE, LINES, PAPER, house_style
from sinkscope.sinks import SinkRule

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


@house_style
def norm_curves(
    samples: Mapping[str, Iterable[xr.Dataset]], rule: SinkRule = RULE, *, group: str = "all"
) -> tuple[Axes, ...]:
    """Draw four panels on a figure of their own, one line in each for the samples under each label.

    Returns the Axes.
    """
    reports = norm_reports(samples, rule, group=group)
    drawn, axes = panels(len(PANELS), height=2.2, across=2, share=False)
    for ax, (name, title) in zip(axes, PANELS.items(), strict=True):
        for number, (label, report) in enumerate(reports.items()):
            paint_layers(ax, report.tables[name], name, label, number)
        entitle(ax, title if len(reports) > 1 else f"{next(iter(reports))}: {title}")
        ax.set_xlabel("layer")
        whole_ticks(ax.xaxis)
    for ax in axes[2:]:
        ax.set_ylim(0, 1)
        percent_axis(ax.yaxis)
    only_outer_labels(axes, 2)
    if len(reports) > 1:
        legend_above(drawn, [line for line in axes[0].lines if line.get_gid() == "mean"])
    caption(drawn, made_by(rule, None, group, f"kept: {KEPT:g} of the keys", "grey: a random order"))
    return tuple(axes)


def paint_layers(ax: Axes, table: xr.Dataset, name: str, label: str, number: int) -> None:
    """One line with its interval, and what chance gives."""
    color, dash, marker = LINES[number % len(LINES)]
    layers = table["layer"].values
    if name == "correlation":
        ax.fill_between(layers, table["chance_low"], table["chance_high"], color=PAPER, linewidth=0, zorder=0)
    else:
        chance = np.ones(len(layers)) if name == "loss" else table["chance"].values
        ax.plot(layers, chance, color=BASE, linewidth=0.8, gid="chance", zorder=1)
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
