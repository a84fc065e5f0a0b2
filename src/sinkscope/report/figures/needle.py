"""A needle in a haystack: share of needles found by depth and length, a map for each scorer and share of keys kept.

Rows are scorers, columns the share of keys that stay; the first map is the run with all keys. A cell's number is the
per cent of its needles that were found, all draws of random keys together.

Where it misleads: a cell holds few needles (the title says how many), and of 5 found out of 5 the interval still
reaches down to 57 %.
"""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from numpy.typing import NDArray

from sinkscope.errors import UserError
from sinkscope.evaluation.compressed import WHOLE, Row
from sinkscope.report.figures.compression import row_title
from sinkscope.report.figures.compression_cells import WHOLE_KEPT, budget_order, label_order, pooled
from sinkscope.report.figures.inputs import Inputs
from sinkscope.report.figures.labels import caption, entitle, printable, shortened
from sinkscope.report.figures.panels import WIDE, color_bar, fresh_axes
from sinkscope.report.figures.registry import figure
from sinkscope.report.figures.style import heat_colors, house_style

_SHARES = Normalize(0, 1)
_DARK = 0.55
"""Share from which numbers are written in white."""


def found_shares(rows: Sequence[Row], label: str, kept: str) -> NDArray[np.float64] | None:
    """Share of needles found, (depth, length); None where there is no such cell."""
    outcome, measure = pooled(rows, label, kept), rows[0].settings["measure"]
    if outcome is None:
        return None
    shape = (len(measure["lengths"]), len(measure["depths"]), -1)
    shares: NDArray[np.float64] = (outcome.numerators / outcome.denominators).reshape(shape).mean(-1).T
    return shares


@house_style
def needle_map(rows: Sequence[Row], label: str = WHOLE, kept: str = WHOLE_KEPT, *, ax: Axes | None = None) -> Axes:
    """Draw one scorer at one budget. Returns the axes, `ax` or new ones.

    rows: the cells of one model and needle test. Raises `UserError` where there is no such cell.
    """
    shares = found_shares(rows, label, kept)
    if shares is None:
        raise UserError(f"there is no cell of {label} at {kept}")
    ax = fresh_axes(3.2, 2.4) if ax is None else ax
    image = paint(ax, shares, rows)
    ax.set_xlabel("length of the context, tokens")
    ax.set_ylabel("depth of the needle")
    color_bar([ax], image, "share found")
    entitle(ax, f"{row_title(rows)}: {label} at {kept}")
    return ax


def paint(ax: Axes, shares: NDArray[np.float64], rows: Sequence[Row]) -> AxesImage:
    """The map without words but its ticks and numbers."""
    measure = rows[0].settings["measure"]
    image = ax.imshow(shares, norm=_SHARES, cmap=heat_colors(), aspect="auto")
    ax.set_xticks(np.arange(shares.shape[1]), [str(length) for length in measure["lengths"]])
    ax.set_yticks(np.arange(shares.shape[0]), [f"{depth:g}" for depth in measure["depths"]])
    for (depth, length), share in np.ndenumerate(shares):
        color = "white" if share > _DARK else "black"
        ax.text(length, depth, f"{100 * share:.0f}", ha="center", va="center", fontsize=5.5, color=color)
    return image


@figure("needle", "share of needles found by depth and length, a map a scorer and share of keys kept")
def needle_maps(inputs: Inputs) -> Figure:
    """Of the first model and needle test among the inputs."""
    tests = [one.rows for one in inputs.compressions if "depths" in one.rows[0].settings["measure"]]
    if not tests:
        raise UserError("no needle test was given (sinkscope compress --task needle, then --compression FOLDER)")
    rows = tests[0]
    budgets, labels = budget_order(rows), label_order(rows)
    drawn = Figure(figsize=(WIDE, 0.5 + 1.25 * len(labels)), layout="constrained")
    grid = drawn.subplots(len(labels), len(budgets), squeeze=False, sharex=True, sharey=True)
    images = []
    for across, (label, axes) in enumerate(zip(labels, grid, strict=True)):
        for kept, ax in zip(budgets, axes, strict=True):
            shares = found_shares(rows, label, kept)
            if shares is None or (kept == WHOLE_KEPT and across > 0):
                ax.set_axis_off()
                continue
            images.append(paint(ax, shares, rows))
            name = WHOLE if kept == WHOLE_KEPT else f"{printable(shortened(label, 24))}, {kept}"
            ax.set_title(name, fontsize=6)
            ax.tick_params(labelbottom=True, labelleft=ax is axes[0] or kept == budgets[1])
    grid[0][0].set_xlabel("length, tokens")
    grid[0][0].set_ylabel("depth")
    color_bar(list(grid.ravel()), images[0], "share found")
    measure = rows[0].settings["measure"]
    each = rows[0].outcome.n // (len(measure["lengths"]) * len(measure["depths"]))
    more = f"; of {len(tests)} needle tests the first" if len(tests) > 1 else ""
    caption(drawn, f"{row_title(rows)}, {each} a cell; numbers: per cent found, all draws of random together{more}")
    return drawn
