"""Rank correlation of key norm and received attention as maps: layer by key head, and layer by step.

Blue is what key-norm compression counts on, low norms that receive much; orange is the opposite. White is none.

Where it misleads: in grey the two signs look alike. A step that few samples reach is averaged over those alone.
"""

from collections.abc import Iterable, Sequence
from functools import reduce

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from sinkscope.compression.diagnostics import Which, norm_correlation
from sinkscope.report.figures.inputs import Inputs, with_first
from sinkscope.report.figures.labels import caption, entitle, model_label
from sinkscope.report.figures.panels import color_bar, fresh_axes, hatched, label_places, owner, panels
from sinkscope.report.figures.registry import figure
from sinkscope.report.figures.style import COMMIT, SINK, house_style
from sinkscope.sinks.tables.base import add_sums, per

COLORS = LinearSegmentedColormap.from_list("sinkscope-signs", ["#003f57", COMMIT, "#ffffff", SINK, "#6e2200"])
BAR = "rank correlation\n(below 0: low norms receive much)"
RANKS = "Spearman's of key norm and received attention"
AVERAGED = {"kv_head": "averaged over steps and samples", "step": "averaged over heads and samples"}
"""What is averaged, by what the map is over besides layers."""
_LABEL = {"kv_head": "key head", "step": "step"}


def correlations(samples: Iterable[xr.Dataset], *, across: str, group: str = "all") -> xr.DataArray:
    """Mean correlation `(layer, across)`; `across` is "kv_head" or "step". Raises `UserError` where norms are missing.

    Steps without a sample that has a correlation there are NaN.
    """
    total = reduce(add_sums, (_sums(sample, across, group) for sample in samples if sample.sizes.get("step", 0)))
    return per(total["sum"], total["rows"]).transpose("layer", across)


def _sums(sample: xr.Dataset, across: str, group: str) -> xr.Dataset:
    found = norm_correlation(sample, Which(group=group)).drop_attrs()
    rest = [dim for dim in found.dims if dim not in ("layer", across)]
    return xr.Dataset({"sum": found.sum(rest), "rows": found.notnull().sum(rest)})


@house_style
def norm_map(
    samples: Iterable[xr.Dataset], *, across: str = "kv_head", group: str = "all", ax: Axes | None = None
) -> Axes:
    """Draw all these samples of one model, layer by key head or by step. Returns the axes, `ax` or new ones."""
    first, every = with_first(samples)
    shown = correlations(every, across=across, group=group)
    ax = fresh_axes(3.8, 3.2) if ax is None else ax
    image = paint_signs(ax, shown, across, farthest([shown]))
    ax.set_ylabel("layer")
    color_bar([ax], image, BAR)
    entitle(ax, model_label(first), _made(group, across))
    return ax


def farthest(shown: Sequence[xr.DataArray]) -> float:
    """The largest distance from 0, at least a tenth."""
    return max(0.1, *(float(abs(one).max()) for one in shown))


def paint_signs(ax: Axes, shown: xr.DataArray, across: str, reach: float) -> AxesImage:
    """The map without its title; colours from -reach to reach."""
    hatched(ax)
    values = np.ma.masked_invalid(shown.values)
    image = ax.imshow(values, norm=Normalize(-reach, reach), cmap=COLORS, aspect="auto", origin="lower")
    ax.set_xlabel(_LABEL[across])
    label_places(ax, x=shown[across].values, y=shown["layer"].values)
    return image


def _made(group: str, across: str) -> str:
    return f"{RANKS}; queries: {group}; {AVERAGED[across]}"


def _maps(inputs: Inputs, across: str) -> Figure:
    """One panel a trace, one scale of colours."""
    subjects = inputs.traced()
    if len(subjects) == 1:
        return owner(norm_map(subjects[0].samples, across=across, group=inputs.group))
    shown = [correlations(one.samples, across=across, group=inputs.group) for one in subjects]
    drawn, axes = panels(len(shown), height=2.5, share=False)
    images = [paint_signs(ax, one, across, farthest(shown)) for ax, one in zip(axes, shown, strict=True)]
    for ax, subject in zip(axes, subjects, strict=True):
        entitle(ax, subject.label)
    axes[0].set_ylabel("layer")
    color_bar(axes, images[-1], BAR)
    caption(drawn, _made(inputs.group, across))
    return drawn


@figure("key-norm-heads", "rank correlation of key norm and attention, by layer and key head")
def key_norm_heads(inputs: Inputs) -> Figure:
    """Averaged over steps and samples."""
    return _maps(inputs, "kv_head")


@figure("key-norm-steps", "rank correlation of key norm and attention, by layer and step")
def key_norm_steps(inputs: Inputs) -> Figure:
    """Averaged over heads and samples."""
    return _maps(inputs, "step")
