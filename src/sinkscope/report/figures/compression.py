"""What it costs to drop keys: scores over the share of keys that stay, a line for each scorer, with 95 % intervals.

All lines begin at the run with all keys. The draws of random keys are put together: each example counts with the mean
of its draws. Budgets are evenly spaced, whatever lies between them.

Where it misleads: intervals of two lines may overlap where the paired difference is clear; `sinkscope compress` tests
differences in pairs. Intervals are about the choice of examples alone, and of one text there is none.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sinkscope.errors import UserError
from sinkscope.evaluation.compressed import CONTROL, Row
from sinkscope.report.figures.compression_cells import budget_order, label_order, pooled
from sinkscope.report.figures.inputs import Inputs
from sinkscope.report.figures.labels import caption, entitle, printable, shortened
from sinkscope.report.figures.panels import fresh_axes, legend_above, only_outer_labels, panels
from sinkscope.report.figures.registry import figure
from sinkscope.report.figures.score_lines import name_score, score_line
from sinkscope.report.figures.style import LINES, SOFT, house_style

INTERVALS = "bars: 95 % intervals over examples; all draws of random together"
ACROSS = 2
_APART = 0.05
"""Between the lines, in steps of the axis, so that their intervals do not hide each other."""
_CROSSES = ("x", "+", "1", "2")
"""Markers of random keys, with different exceptions."""


@house_style
def compression_curves(rows: Sequence[Row], *, ax: Axes | None = None) -> Axes:
    """Draw the cells of one model and task. Returns the axes, `ax` or new ones.

    Raises `UserError` for no cells, and for cells of several models or tasks.
    """
    if len({(row.model, row.task, row.when) for row in rows}) != 1:
        raise UserError("compression curves take the cells of one model and one task: draw others on axes of their own")
    ax = fresh_axes(4.2, 2.7) if ax is None else ax
    paint(ax, rows)
    ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    entitle(ax, row_title(rows), INTERVALS)
    return ax


def paint(ax: Axes, rows: Sequence[Row], labels: Sequence[str] | None = None) -> None:
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
        score_line(ax, there, printable(label), looks[label])
    ax.set_xticks(np.arange(len(budgets)), budgets)
    ax.set_xlabel("share of keys kept")
    name_score(ax, rows[0].better)


def _looks(labels: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Colour, dash and marker of each line: filled first, empty where they begin anew.

    Random keys stand back in grey.
    """
    controls = [label for label in labels if label.split(",")[0] == CONTROL]
    looks: dict[str, dict[str, Any]] = {}
    for number, label in enumerate(one for one in labels if one not in controls):
        color, dash, marker = LINES[number % len(LINES)]
        filled = {} if number < len(LINES) else {"mfc": "white"}
        looks[label] = {"color": color, "linestyle": dash, "marker": marker, **filled}
    for number, label in enumerate(controls):
        marker = _CROSSES[number % len(_CROSSES)]
        looks[label] = {"color": SOFT, "linestyle": ":", "marker": marker, "markersize": 4.5}
    return looks


def row_title(rows: Sequence[Row]) -> str:
    """Model, task, when keys are dropped, and number of examples."""
    one = rows[0]
    return f"{printable(shortened(one.model, 40))}, {printable(one.task)} ({one.when}), n = {one.outcome.n}"


@figure("compression", "scores by share of keys kept, a line a scorer, with 95 % intervals")
def compression_panels(inputs: Inputs) -> Figure:
    """One panel for every model and task."""
    every = inputs.compressions
    if not every:
        raise UserError("no comparison of compressed caches was given (--compression FOLDER)")
    drawn, axes = panels(len(every), height=2.3, across=ACROSS, share=False)
    labels = list(dict.fromkeys(label for one in every for label in label_order(one.rows)))
    for ax, one in zip(axes, every, strict=True):
        paint(ax, one.rows, labels)
        entitle(ax, row_title(one.rows))
    handles: dict[str, Artist] = {}
    for ax in axes:
        handles |= {str(name): handle for handle, name in zip(*ax.get_legend_handles_labels(), strict=True)}
    if len({tuple(budget_order(one.rows)) for one in every}) == 1:
        only_outer_labels(axes, ACROSS)
    legend_above(drawn, handles.values(), handles.keys())
    caption(drawn, INTERVALS)
    return drawn
