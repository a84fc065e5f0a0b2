"""What makes and unmakes sinks: the findings of a laboratory, a row a recipe.

A dot is a mean over trainings, its bar runs from the lowest to the highest of them. The axis of what it costs to hide
keys is linear up to a tenth of a nat and logarithmic beyond it: some recipes cost nearly nothing, one many nats.

Where it misleads: few seeds; and sinks and costs are of the same contexts, so that seeds differ by training alone.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from sinkscope.errors import UserError
from sinkscope.experiments.points import Spread
from sinkscope.lab.studies import Finding, findings, labels, read_lab
from sinkscope.report.figures.inputs import Inputs
from sinkscope.report.figures.labels import caption, entitle, printable
from sinkscope.report.figures.making import figure
from sinkscope.report.figures.style import LINES, SOFT, WIDE, columns_for, fitting, own_legend

_PASSES = ("text", "masked 0.5")
"""Which pass of a causal and of a bidirectional network is drawn."""
_PANELS = (
    ("attention received", (("strongest key", "strongest_received"), ("first token", "first_received"))),
    ("nats above entropy", (("loss", "excess"),)),
    (
        "nats that hiding keys costs",
        (
            ("strongest", "cost strongest all"),
            ("as much attention elsewhere", "cost equal-mass all"),
            ("another key", "cost random all"),
        ),
    ),
)
_COST = _PANELS[-1][0]
_LINEAR = 0.1
"""Nats up to which the axis of costs is linear."""
_ROW = 0.17
"""Inches."""


def read_findings(folder: Path) -> tuple[Finding, ...]:
    """Of a folder with the cells of a laboratory. Raises `UserError` for one that holds none."""
    return tuple(findings(read_lab(folder)))


@figure("lab", "what makes and unmakes sinks: attention, loss and cost by recipe")
def lab_panels(inputs: Inputs) -> Figure:
    """Rows of panels, one an objective and pass; in each a line a recipe."""
    shown: dict[tuple[str, str], list[Finding]] = {}
    for one in inputs.findings:
        if one.where in _PASSES:
            shown.setdefault((one.objective, one.where), []).append(one)
    if not shown:
        raise UserError("no laboratory was given (--lab FOLDER)")
    columns = columns_for(len(_PANELS), len(_PANELS))
    rows = [(one, which) for one in shown for which in np.array_split(range(len(_PANELS)), len(_PANELS) // columns)]
    heights = [len(shown[one]) + 4.5 for one, _ in rows]
    drawn = Figure(figsize=(fitting(WIDE), _ROW * sum(heights) + 0.5), layout="constrained")
    grid = drawn.subplots(
        len(rows), columns, squeeze=False, sharex="col" if columns > 1 else "none", height_ratios=heights
    )
    for line, (row, which) in zip(grid, rows, strict=True):
        some, (objective, where) = shown[row], row
        lifts = [_paint(ax, some, *_PANELS[number]) for ax, number in zip(line, which, strict=True)]
        line[0].set_yticks(range(len(some)), list(map(printable, labels(some))))
        entitle(line[0], f"{objective}, {where}", lift=max(lifts))
    said = f"axis of costs: linear to {_LINEAR:g}, logarithmic beyond"
    caption(
        drawn,
        f"dots: means over seeds; bars: lowest to highest; every change is of the recipe in the first row; {said}",
    )
    return drawn


def _paint(ax: Axes, some: Sequence[Finding], what: str, series: Sequence[tuple[str, str]]) -> float:
    """One panel, a line a recipe; points that its legend takes."""
    ax.axvline(0, color=SOFT, linewidth=0.5)
    for number, (label, name) in enumerate(series):
        color, _, marker = LINES[number + 1]
        offset = (number - (len(series) - 1) / 2) * 0.22
        found = [(place + offset, one.values[name]) for place, one in enumerate(some) if name in one.values]
        for place, spread in found:
            ax.plot(_ends(spread), (place, place), color=color, linewidth=0.8)
        ax.plot(
            [spread.mean for _, spread in found], [place for place, _ in found], color=color, marker=marker,
            linestyle="", label=label,
        )  # fmt: skip

    ax.set_yticks(range(len(some)), [""] * len(some))
    ax.set_ylim(len(some) - 0.4, -0.6)
    ax.set_xlabel(what)
    if what == _COST:
        _logarithmic(ax)
    else:
        ax.locator_params(axis="x", nbins=4)
    return own_legend(ax, handle=1.2) if len(series) > 1 else 0.0


def _logarithmic(ax: Axes) -> None:
    """An axis of costs, with room for what is near 0 and for what is far from it."""
    ax.margins(x=0.03)
    ax.set_xscale("symlog", linthresh=_LINEAR, linscale=1.0)
    decades = [_LINEAR * 10.0**power for power in range(4)]
    ax.xaxis.set_major_locator(FixedLocator([*(-one for one in decades), 0.0, *decades]))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.xaxis.set_minor_locator(NullLocator())


def _ends(spread: Spread) -> tuple[float, float]:
    return spread.lowest, spread.highest
