"""What stands on the canvas step by step: prompt, text, masks of the block and masks to come (Fig. 2).

The published figure is a drawing of the method; this one is of what a model did. A tick at the end of a cell
marks what is committed after the step, the line the current block. Of an autoregressive model all after its text is
hatched: there is no canvas.

Where it misleads: it shows the order in which positions are filled, not whether what fills them is right.
"""

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from sinkscope.errors import UserError
from sinkscope.report.figures import style
from sinkscope.report.figures.heat_map import paint_course, place_entries
from sinkscope.report.figures.inputs import Inputs, found_in
from sinkscope.report.figures.labels import caption, entitle, sample_label
from sinkscope.report.figures.making import figure
from sinkscope.sinks.lexicon import Lexicon

STATES = {
    "prompt": style.BASE,
    "text": "#9cc3d5",
    "mask of the block": "#f6c9a4",
    "mask to come": "#fdf1e4",
}
"""What a position may hold, and its colour; lighter from left to right."""


def states(sample: xr.Dataset) -> NDArray[np.float64]:
    """Number of each position's state in `STATES`, `(step, position)`; NaN where there is no token.

    Raises `UserError` where the canvas was not recorded.
    """
    if "canvas" not in sample:
        raise UserError("the tokens on the canvas were not recorded")
    canvas = sample["canvas"].transpose("step", "position").values
    place, mask = sample["position"].values, Lexicon.of(sample).mask_token_id
    given = (place < int(sample.attrs.get("prompt_length", 0))) & ~(canvas == mask).any(0)  # a prompt may hold masks
    found = np.where(given, 0.0, 1.0) * np.ones(canvas.shape)
    if mask is not None:
        start, stop = (sample[name].values[:, None] if name in sample else limit for name, limit in _WHOLE.items())
        inside = (place >= start) & (place < stop)
        found = np.where(canvas == mask, np.where(inside, 2.0, 3.0), found)
    return np.where(canvas < 0, np.nan, found)


_WHOLE = {"block_start": -np.inf, "block_stop": np.inf}


def paint(ax: Axes, sample: xr.Dataset, shown: NDArray[np.float64]) -> None:
    """The states of one sample with commits and blocks, without title and legend."""
    style.hatched(ax)
    norm = BoundaryNorm(np.arange(len(STATES) + 1) - 0.5, len(STATES))
    ax.imshow(shown.T, cmap=ListedColormap([*STATES.values()]), norm=norm, aspect="auto", origin="upper")
    paint_course(ax, sample)
    ax.set_ylabel("position")


@figure("decoding", "prompt, text and masks on the canvas by step, with commits and blocks (Fig. 2)")
def decoding_panels(inputs: Inputs) -> Figure:
    """One panel a trace."""
    samples = {one.label: one.sample for one in inputs.traced()}
    found, left_out = found_in(inputs.traced(), lambda one: states(one.sample))
    drawn, axes = style.panels(len(found), height=2.3, share=False)
    for ax, (label, shown) in zip(axes, found.items(), strict=True):
        paint(ax, samples[label], shown)
        entitle(ax, sample_label(samples[label]))
    style.only_outer_labels(axes)
    seen = {number for shown in found.values() for number in np.unique(shown[np.isfinite(shown)]).astype(int)}
    entries = [
        Rectangle((0, 0), 1, 1, fc=color, ec=style.INK, lw=0.3, label=name)
        for number, (name, color) in enumerate(STATES.items())
        if number in seen
    ]
    missing = any(np.isnan(shown).any() for shown in found.values())
    style.legend_above(drawn, [*entries, *place_entries([samples[label] for label in found], missing=missing)])
    caption(drawn, "; ".join(["a column is what a step began with", *left_out]))
    return drawn
