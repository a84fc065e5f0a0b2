"""What it costs to drop keys: scores over the share of keys that stay, and a needle in a haystack by depth and length.

Of scores a line for each scorer, with 95 % intervals; all begin at the run with all keys. The draws of random keys are
put together: each example counts with the mean of its draws. Budgets are evenly spaced, whatever lies between them.

Of needles a map for each scorer (rows) and share of keys kept (columns); the first is the run with all keys. A cell's
number is the per cent of its needles that were found, all draws of random keys together.

Where it misleads: intervals of two lines may overlap where the paired difference is clear; `sinkscope compress` tests
differences in pairs. Intervals are about the choice of examples alone, and of one text there is none. A cell of a
needle map holds few needles (the title says how many), and of 5 found out of 5 the interval still reaches down to 57 %.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from numpy.typing import NDArray

from sinkscope.errors import UserError
from sinkscope.evaluation.conditions import WHOLE
from sinkscope.experiments.eviction import CONTROL, KeysCell
from sinkscope.report.figures import style
from sinkscope.report.figures.cells import (
    WHOLE_KEPT,
    budget_order,
    label_order,
    name_score,
    plain_point,
    pooled,
    score_line,
)
from sinkscope.report.figures.inputs import Inputs
from sinkscope.report.figures.labels import caption, entitle, name_places, printable, shortened
from sinkscope.report.figures.making import figure
from sinkscope.report.traces import last_part

INTERVALS = "bars: 95 % intervals over examples; all draws of random together"
ACROSS = 2
_APART = 0.05
"""Between the lines, in steps of the axis, so that their intervals do not hide each other."""
_CROSSES = ("x", "+", "1", "2")
"""Markers of random keys, with different exceptions."""


@style.house_style
def compression_curves(rows: Sequence[KeysCell], *, ax: Axes | None = None) -> Axes:
    """Draw the cells of one model and task. Returns the axes, `ax` or new ones.

    Raises `UserError` for no cells, and for cells of several models or tasks.
    """
    if len({(row.model, row.task, row.condition.point) for row in rows}) != 1:
        raise UserError("compression curves take the cells of one model and one task: draw others on axes of their own")
    ax = style.fresh_axes(4.2, 2.7) if ax is None else ax
    paint(ax, rows)
    entitle(ax, row_title(rows), INTERVALS, lift=style.own_legend(ax))
    return ax


def paint(ax: Axes, rows: Sequence[KeysCell], labels: Sequence[str] | None = None) -> None:
    """The lines without title and legend. labels: of all panels, so that each looks the same in all."""
    budgets, own = budget_order(rows), label_order(rows)
    looks = _looks(labels or own)
    for number, label in enumerate(own):
        shift = (number - (len(own) - 1) / 2) * _APART
        there = {
            place + (shift if place else 0): found
            for place, kept in enumerate(budgets)
            if (found := pooled(rows, label, kept)) is not None
        }
        score_line(ax, there, printable(label), looks[label], begun=0 in there)
    plain = pooled(rows, "", WHOLE_KEPT)
    if plain is not None:
        plain_point(ax, plain)
    name_places(ax, budgets)
    ax.set_xlabel("share of keys kept")
    name_score(ax, rows[0].better)


def _looks(labels: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Colour, dash and marker of each line: filled first, empty where they begin anew.

    Random keys stand back in grey.
    """
    controls = [label for label in labels if label.split(",")[0] == CONTROL]
    looks: dict[str, dict[str, Any]] = {}
    for number, label in enumerate(one for one in labels if one not in controls):
        color, dash, marker = style.LINES[number % len(style.LINES)]
        filled = {} if number < len(style.LINES) else {"mfc": "white"}
        looks[label] = {"color": color, "linestyle": dash, "marker": marker, **filled}
    for number, label in enumerate(controls):
        marker = _CROSSES[number % len(_CROSSES)]
        looks[label] = {"color": style.SOFT, "linestyle": ":", "marker": marker, "markersize": 4.5}
    return looks


def row_title(rows: Sequence[KeysCell]) -> str:
    """Model, task, when keys are dropped, and number of examples."""
    one = rows[0]
    masked = "" if one.condition.intervention is None else f", {one.condition.keys} {one.condition.masked} masked"
    what = f"{printable(shortened(last_part(one.model), 40))}, {printable(one.task)} ({one.condition.point}{masked})"
    return f"{what}, n = {one.outcome.n}"


@figure("compression", "scores by share of keys kept, a line a scorer, with 95 % intervals")
def compression_panels(inputs: Inputs) -> Figure:
    """One panel for every model and task."""
    every = inputs.compressions
    if not every:
        raise UserError("no comparison of compressed caches was given (--compression FOLDER)")
    drawn, axes = style.panels(len(every), height=2.3, across=ACROSS, share=False)
    labels = list(dict.fromkeys(label for one in every for label in label_order(one.rows)))
    for ax, one in zip(axes, every, strict=True):
        paint(ax, one.rows, labels)
        entitle(ax, row_title(one.rows))
    if len({tuple(budget_order(one.rows)) for one in every}) == 1:
        style.only_outer_labels(axes)
    style.legend_above(drawn, of=axes)
    caption(drawn, INTERVALS)
    return drawn


_SHARES = Normalize(0, 1)
_DARK = 0.55
"""Share from which numbers are written in white."""


def found_shares(rows: Sequence[KeysCell], label: str, kept: str) -> NDArray[np.float64] | None:
    """Share of needles found, (depth, length); None where there is no such cell."""
    outcome, measure = pooled(rows, label, kept), rows[0].settings["measure"]
    if outcome is None:
        return None
    shape = (len(measure["lengths"]), len(measure["depths"]), -1)
    shares: NDArray[np.float64] = (outcome.numerators / outcome.denominators).reshape(shape).mean(-1).T
    return shares


@style.house_style
def needle_map(rows: Sequence[KeysCell], label: str = WHOLE, kept: str = WHOLE_KEPT, *, ax: Axes | None = None) -> Axes:
    """Draw one scorer at one budget. Returns the axes, `ax` or new ones.

    rows: the cells of one model and needle test. Raises `UserError` where there is no such cell.
    """
    shares = found_shares(rows, label, kept)
    if shares is None:
        raise UserError(f"there is no cell of {label} at {kept}")
    ax = style.fresh_axes(3.2, 2.4) if ax is None else ax
    image = paint_needles(ax, shares, rows)
    ax.set_xlabel("length of the context, tokens")
    ax.set_ylabel("depth of the needle")
    style.color_bar([ax], image, "share found")
    entitle(ax, f"{row_title(rows)}: {label} at {kept}")
    return ax


def paint_needles(ax: Axes, shares: NDArray[np.float64], rows: Sequence[KeysCell]) -> AxesImage:
    """The map without words but its ticks and numbers."""
    measure = rows[0].settings["measure"]
    image = ax.imshow(shares, norm=_SHARES, cmap=style.heat_colors(), aspect="auto")
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
    drawn = Figure(figsize=(style.fitting(style.WIDE), 0.5 + 1.25 * len(labels)), layout="constrained")
    grid = drawn.subplots(len(labels), len(budgets), squeeze=False, sharex=True, sharey=True)
    images = []
    for across, (label, axes) in enumerate(zip(labels, grid, strict=True)):
        for kept, ax in zip(budgets, axes, strict=True):
            shares = found_shares(rows, label, kept)
            if shares is None or (kept == WHOLE_KEPT and across > 0):
                ax.set_axis_off()
                continue
            images.append(paint_needles(ax, shares, rows))
            name = WHOLE if kept == WHOLE_KEPT else f"{printable(shortened(label, 24))}, {kept}"
            ax.set_title(name, fontsize=6)
            ax.tick_params(labelbottom=True, labelleft=ax is axes[0] or kept == budgets[1])
    grid[0][0].set_xlabel("length, tokens")
    grid[0][0].set_ylabel("depth")
    style.color_bar(list(grid.ravel()), images[0], "share found")
    measure = rows[0].settings["measure"]
    each = rows[0].outcome.n // (len(measure["lengths"]) * len(measure["depths"]))
    more = f"; of {len(tests)} needle tests the first" if len(tests) > 1 else ""
    caption(drawn, f"{row_title(rows)}, {each} a cell; numbers: per cent found, all draws of random together{more}")
    return drawn
