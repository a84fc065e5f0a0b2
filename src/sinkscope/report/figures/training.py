"""What a model learns and where its attention goes, over its training: from the logs of `sinkscope train`.

Accuracy by task; and what the strongest key receives in whole passes over held-out documents, by layer, with Gu et
al.'s Sink_k of the first token (2410.10781, epsilon 0.3).

Where it misleads: accuracy at a point comes from few problems of each task, so a curve may wobble by 15 points.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sinkscope.errors import UserError, refusing
from sinkscope.families.packaged import PACKAGED, find_packaged
from sinkscope.report.figures.inputs import Inputs, Training
from sinkscope.report.figures.labels import caption, entitle, printable, shortened
from sinkscope.report.figures.making import figure
from sinkscope.report.figures.style import (
    LINES,
    SINK,
    columns_for,
    fitting,
    fresh_axes,
    heat_colors,
    house_style,
    legend_above,
    own_legend,
    percent_axis,
)
from sinkscope.sinks.ar import GU_EPSILON
from sinkscope.training.checkpoints import LOG, read_log

Log = Sequence[dict[str, Any]]
PASS = "finished"
_BY_LAYER = ("top_received", "sink_first")
MEASURED = "whole passes over held-out documents; queries: all; scale mean"
RULE_LINE = f"rule: Sink_k, epsilon {GU_EPSILON:g}, and the strongest key"


def read_training(path: str | Path) -> Training:
    """The log in a folder, the folder of a log, or that of a packaged twin by its name.

    Raises `UserError` where there is no log, or one without points or with lines that are none.
    """
    folder = find_packaged(str(path)) if str(path) in PACKAGED else Path(path)
    folder = folder.parent if folder.name == LOG else folder
    if not (folder / LOG).is_file():
        raise UserError(f"{path} is no training log: name a folder with {LOG}, that file, or a packaged twin")
    rows = read_log(folder)
    if not rows:
        raise UserError(f"{folder / LOG} has no point yet: wait for the training")
    with refusing(f"{folder / LOG} has a point that can't be drawn", "measure anew with sinkscope train"):
        for row in rows:
            _check(row)
        np.array([[row["sinks"][PASS][name] for name in _BY_LAYER] for row in rows], dtype=np.float64)
    return Training(name=folder.name, rows=tuple(rows))


def _check(row: dict[str, Any]) -> None:
    """Raise `KeyError`, `TypeError`, `AttributeError` or `ValueError` for a point without what is drawn of it."""
    shares = [*row["accuracy"].values(), *(one for name in _BY_LAYER for one in row["sinks"][PASS][name])]
    if type(row["step"]) is not int or not all(0 <= one <= 1 for one in shares):
        raise ValueError("a step and shares were wanted")


@house_style
def accuracy_curves(name: str, rows: Log, *, ax: Axes | None = None) -> Axes:
    """Draw accuracy by task over the optimizer's steps. Returns the axes, `ax` or new ones."""
    ax = fresh_axes(4.6, 2.6) if ax is None else ax
    paint_accuracy(ax, rows)
    return _labelled(ax, name, "problems answered", "exact answers to held-out problems")


@house_style
def emergence_curves(name: str, rows: Log, *, ax: Axes | None = None) -> Axes:
    """Draw the strongest key's attention by layer, and the first token's Sink_k. Returns the axes, `ax` or new ones."""
    ax = fresh_axes(4.6, 2.6) if ax is None else ax
    paint_attention(ax, rows)
    return _labelled(ax, name, "attention received", f"{RULE_LINE}; {MEASURED}")


def _labelled(ax: Axes, name: str, what: str, settings: str) -> Axes:
    ax.set_xlabel("optimizer steps")
    ax.set_ylabel(what)
    entitle(ax, printable(shortened(name, 40)), settings, lift=own_legend(ax))
    return ax


def paint_accuracy(ax: Axes, rows: Log) -> None:
    """One line a task."""
    steps = [row["step"] for row in rows]
    tasks = list(dict.fromkeys(task for row in rows for task in row["accuracy"]))
    for number, task in enumerate(tasks):
        color, dash = LINES[number // 3 % len(LINES)][0], ("-", "--", ":")[number % 3]
        values = [row["accuracy"].get(task, np.nan) for row in rows]
        ax.plot(steps, values, color=color, linestyle=dash, label=printable(task), marker="o" if len(rows) == 1 else "")
    _shares(ax)


def paint_attention(ax: Axes, rows: Log) -> None:
    """One line a layer, darker towards the last, and the first token's Sink_k."""
    steps = [row["step"] for row in rows]
    marker = "o" if len(rows) == 1 else ""
    received = np.array([row["sinks"][PASS]["top_received"] for row in rows])
    colors = heat_colors()
    for layer, values in enumerate(received.T):
        depth = 0.25 + 0.75 * layer / max(1, received.shape[1] - 1)
        ax.plot(steps, values, color=colors(depth), label=f"layer {layer}", marker=marker)
    first = np.array([row["sinks"][PASS]["sink_first"] for row in rows]).mean(1)
    label = "Sink_k, first token\n(mean over layers)"
    ax.plot(steps, first, color=SINK, linestyle=(0, (4, 1.5)), linewidth=1.4, label=label, marker=marker)
    _shares(ax)


def _shares(ax: Axes) -> None:
    ax.set_ylim(bottom=0)
    percent_axis(ax.yaxis)


@figure("training", "accuracy and the strongest key's attention over a training")
def training_panels(inputs: Inputs) -> Figure:
    """One column a training: accuracy above, attention below; a row of panels has one legend."""
    if not inputs.trainings:
        raise UserError("no training log was given (--log FOLDER)")
    count = len(inputs.trainings)
    columns = columns_for(count, 3)
    rows = [inputs.trainings[first : first + columns] for first in range(0, count, columns)]
    drawn = Figure(figsize=(fitting(3.0 + 1.8 * columns), 4.2 * len(rows)), layout="constrained")
    parts = drawn.subfigures(2 * len(rows), 1, squeeze=False).ravel()
    for above, below, some in zip(parts[::2], parts[1::2], rows, strict=True):
        upper = above.subplots(1, columns, squeeze=False)[0]
        lower = below.subplots(1, columns, squeeze=False)[0]
        for empty in (*upper[len(some) :], *lower[len(some) :]):
            empty.remove()
        for ax, one in zip(upper, some, strict=False):
            paint_accuracy(ax, one.rows)
            entitle(ax, printable(shortened(one.name, 40)))
        for ax, one in zip(lower, some, strict=False):
            paint_attention(ax, one.rows)
            ax.set_xlabel("optimizer steps")
        upper[0].set_ylabel("problems answered")
        lower[0].set_ylabel("attention received by\nthe strongest key")
        legend_above(above, of=upper[: len(some)])
        legend_above(below, of=lower[: len(some)])
    caption(drawn, f"above: exact answers to held-out problems; below: {RULE_LINE}, {MEASURED}")
    return drawn
