"""Strength of the main sink in every layer and head, averaged over steps and samples (Fig. 5).

Where it misleads: the strongest key of each row, which need not be the same one from step to step, nor a sink by any
rule; on scale "sum" longer texts have higher scores.
"""

from collections.abc import Iterable

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from sinkscope.errors import UserError
from sinkscope.report.figures.inputs import RULE, Inputs, with_first
from sinkscope.report.figures.labels import SCORES, caption, entitle, made_by, model_label
from sinkscope.report.figures.panels import color_bar, fresh_axes, label_places, owner, panels
from sinkscope.report.figures.registry import figure
from sinkscope.report.figures.style import heat_colors, house_style
from sinkscope.sinks import summarise
from sinkscope.sinks.scales import require_scale

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


@house_style
def layer_head_map(
    samples: Iterable[xr.Dataset], *, group: str = "all", scale: str = "sum", ax: Axes | None = None
) -> Axes:
    """Draw all these samples of one model. Returns the axes, `ax` or new ones."""
    first, every = with_first(samples)
    shown = strengths(every, group=group, scale=scale)
    ax = fresh_axes(3.8, 3.2) if ax is None else ax
    image = paint(ax, shown, float(shown.max()))
    ax.set_ylabel("layer")
    color_bar([ax], image, f"strongest key's score\n{SCORES[scale]}")
    entitle(ax, model_label(first), made_by(STRONGEST, scale, group, AVERAGED))
    return ax


def paint(ax: Axes, shown: xr.DataArray, highest: float) -> AxesImage:
    """The map without its title; colours from 0 to `highest`."""
    norm = Normalize(0, highest)
    image = ax.imshow(shown.values, norm=norm, cmap=heat_colors(), aspect="auto", origin="lower")
    ax.set_xlabel("head")
    label_places(ax, x=shown["head"].values, y=shown["layer"].values)
    return image


@figure("layer-heads", "score of the main sink by layer and head, averaged over steps (Fig. 5)")
def layer_head_maps(inputs: Inputs) -> Figure:
    """One panel a trace, one scale of colours."""
    subjects = inputs.traced()
    if len(subjects) == 1:
        return owner(layer_head_map(subjects[0].samples, group=inputs.group, scale=inputs.scale))
    shown = [strengths(one.samples, group=inputs.group, scale=inputs.scale) for one in subjects]
    drawn, axes = panels(len(shown), height=2.5, share=False)
    highest = float(np.max([one.max() for one in shown]))
    images = [paint(ax, one, highest) for ax, one in zip(axes, shown, strict=True)]
    for ax, subject in zip(axes, subjects, strict=True):
        entitle(ax, subject.label)
    axes[0].set_ylabel("layer")
    color_bar(axes, images[-1], f"strongest key's score\n{SCORES[inputs.scale]}")
    caption(drawn, made_by(STRONGEST, inputs.scale, inputs.group, AVERAGED))
    return drawn
