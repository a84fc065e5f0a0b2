"""One network under several masks: what its keys receive by position, how strong its strongest keys are, and how often
they are the first token.

Of traces of the same weights, their finished texts passed whole. By position, on a logarithmic axis, all block masks
are one band, from the lowest to the highest of them: they hardly differ. Grey is chance, from random weights to one
random key a query, under that very mask.

Where it misleads: a network under a mask that it was not trained with is no working model; the figure does not show
its loss. See `sinks.masks`.
"""

from collections.abc import Sequence

import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sinkscope.report.figures import style
from sinkscope.report.figures.inputs import Inputs
from sinkscope.report.figures.labels import caption, entitle, printable
from sinkscope.report.figures.making import figure
from sinkscope.report.traces import distinct
from sinkscope.sinks import compare_masks, mask_name
from sinkscope.sinks.masks import CHANCES

_BLOCKS = "blocks of "
_BAND = "#9cc3d5"
_BY_MASK = (("strongest key receives", "received"), ("strongest is the first", "first"))


@figure("masks", "one network under several masks: what keys receive by position, the strongest beside chance")
def mask_panels(inputs: Inputs) -> Figure:
    """Three panels, masks in the order of the traces. Raises `UserError` as `compare_masks` does."""
    subjects = inputs.traced()
    labels = distinct([mask_name(one.sample) for one in subjects], [one.label for one in subjects])
    found = compare_masks({label: one.samples for label, one in zip(labels, subjects, strict=True)})
    drawn, axes = style.panels(1 + len(_BY_MASK), height=2.6, share=False)
    blocks = [label for label, one in zip(labels, subjects, strict=True) if mask_name(one.sample).startswith(_BLOCKS)]
    _by_position(axes[0], found["profile"], labels, blocks)
    entitle(axes[0], "a key receives, mean")
    for ax, (title, name) in zip(axes[1:], _BY_MASK, strict=True):
        _by_mask(ax, found, labels, name)
        entitle(ax, title)
        ax.set_ylim(0, 1.03)
    for ax in axes:
        style.percent_axis(ax.yaxis)
    style.legend_above(drawn, of=axes)
    counts = sorted({int(one) for one in found["texts"].values})
    texts = " to ".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
    which = "the same texts" if bool(found["same"].notnull().all()) else "texts of each trace's own"
    caption(drawn, f"finished texts passed whole, {texts} a mask, {which}; means over layers and heads; left: log axis")
    return drawn


def _by_position(ax: Axes, profiles: xr.DataArray, labels: Sequence[str], blocks: Sequence[str]) -> None:
    """One line a mask, several block masks as one band."""
    band = blocks if len(blocks) > 1 else []
    for number, label in enumerate(label for label in labels if label not in band):
        color, dashes, _ = style.LINES[number % len(style.LINES)]
        profile = profiles.sel(mask=label).dropna("position")
        ax.plot(profile["position"], profile, color=color, linestyle=dashes, label=label)
    if band:
        some = profiles.sel(mask=band).dropna("position", how="all")
        lowest, highest = some.min("mask"), some.max("mask")
        ax.fill_between(some["position"], lowest, highest, color=_BAND, alpha=0.6, linewidth=0.8, label=_named(band))
    ax.set_yscale("log")
    ax.set_ylim(top=1.0)
    ax.minorticks_off()
    ax.set_xlabel("position")


def _named(blocks: Sequence[str]) -> str:
    """ "blocks of 2, 4, 8"."""
    return ", ".join([blocks[0], *(label.removeprefix(_BLOCKS) for label in blocks[1:])])


def _by_mask(ax: Axes, found: xr.Dataset, labels: Sequence[str], name: str) -> None:
    places, (one, other) = range(len(labels)), (found[f"{name}_{kind}"].values for kind in CHANCES)
    ax.fill_between(places, one, other, color=style.SOFT, alpha=0.5, linewidth=0, label="chance")
    ax.plot(places, found[name].mean("layer"), color=style.INK, marker="o")
    ax.set_xticks(places, list(map(printable, labels)), rotation=30, ha="right")
    ax.set_xlim(-0.3, len(labels) - 0.7)
