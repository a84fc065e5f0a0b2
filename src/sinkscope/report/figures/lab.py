"""What makes and unmakes sinks: the findings of a laboratory, a row a recipe.

A dot is a mean over trainings, its bar runs from the lowest to the highest of them.

Where it misleads: few seeds; and sinks and costs are of the same contexts, so that seeds differ by training alone.
"""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sinkscope.errors import UserError
from sinkscope.experiments.points import Spread
from sinkscope.lab.studies import Finding, findings, labels, read_lab
from sinkscope.report.figures.inputs import Inputs
from sinkscope.report.figures.labels import caption, entitle, printable
from sinkscope.report.figures.making import figure
from sinkscope.report.figures.style import LINES, SOFT, WIDE

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
_LEGEND = 22.0
"""Points that the legends above the first panels take."""
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
    heights = [len(some) + 3.0 for some in shown.values()]
    drawn = Figure(figsize=(WIDE, _ROW * sum(heights) + 0.5), layout="constrained")
    grid = drawn.subplots(len(shown), len(_PANELS), squeeze=False, sharex="col", height_ratios=heights)
    for row, ((objective, where), some) in zip(grid, shown.items(), strict=True):
        for number, (ax, (what, series)) in enumerate(zip(row, _PANELS, strict=True)):
            _paint(ax, some, series)
            ax.set_yticks(range(len(some)), list(map(printable, labels(some))) if number == 0 else [""] * len(some))
            ax.set_ylim(len(some) - 0.4, -0.6)
            if ax in grid[-1]:
                ax.set_xlabel(what)
        entitle(row[0], f"{objective}, {where}", lift=_LEGEND if row[0] is grid[0, 0] else 0.0)
    for ax, (_, series) in zip(grid[0], _PANELS, strict=True):
        if len(series) > 1:
            ax.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=1, handlelength=1.2)
    caption(drawn, "dots: means over seeds; bars: lowest to highest; every change is of the recipe in the first row")
    return drawn


def _paint(ax: Axes, some: Sequence[Finding], series: Sequence[tuple[str, str]]) -> None:
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


def _ends(spread: Spread) -> tuple[float, float]:
    return spread.lowest, spread.highest
