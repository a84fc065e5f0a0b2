"""How far gates choose what other ways would have chosen: overlap of the two choices beside that of chance.

A group a gate, a bar each for chance and for every other way; above each bar the rank correlation of the scores.

Where it misleads: at a large share all choices overlap; look at what a bar has more than chance. Correlation is over
all patches that are still there, overlap over those that the gate keeps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from sinkscope.errors import UserError
from sinkscope.report.figures.labels import entitle, printable
from sinkscope.report.figures.panels import HATCH, fresh_axes, percent_axis
from sinkscope.report.figures.style import BASE, PAPER, SINK, house_style
from sinkscope.selection.agreement import Agreement

HOW = "numbers: rank correlation (Spearman's), mean over pictures"
CHANCE = "chance"
_FILLS = ((SINK, ""), ("#2a86b8", "...."), ("#b9a2d3", "\\\\\\\\"), ("#4f8a2a", "xx"), ("#d69a00", "++"))
"""Colour and hatch of the first, second ... way that gates are compared with."""
_GROUP = 0.8
"""Of the room from one gate to the next."""


@house_style
def agreement_bars(
    agreements: Sequence[Agreement], *, title: str = "", settings: str = "", ax: Axes | None = None
) -> Axes:
    """Draw all of them, gate by gate. Returns the axes, `ax` or new ones.

    title: model and share for example. settings: added to the line below it. Raises `UserError` for none, and for a
    gate that is compared with the same way twice, as those of two shares.
    """
    if not agreements or len({(one.gate, one.other) for one in agreements}) != len(agreements):
        raise UserError("agreement bars take every gate and way once: those of one model at one share")
    gates = list(dict.fromkeys(one.gate for one in agreements))
    others = list(dict.fromkeys(one.other for one in agreements))
    ax = fresh_axes(max(3.6, 1.7 + 1.7 * len(gates)), 2.6) if ax is None else ax
    width = _GROUP / (len(others) + 1)
    left = np.arange(len(gates)) - _GROUP / 2 + width / 2
    chances = [next(one.chance for one in agreements if one.gate == gate) for gate in gates]
    look: dict[str, Any] = {"facecolor": PAPER, "edgecolor": BASE, "hatch": HATCH, "linewidth": 0.4}
    ax.bar(left, chances, 0.92 * width, label=CHANCE, **look)
    for number, other in enumerate(others):
        some = {left[gates.index(one.gate)] + (number + 1) * width: one for one in agreements if one.other == other}
        color, hatch = _FILLS[number % len(_FILLS)]
        look = {"facecolor": color, "edgecolor": "white", "hatch": hatch, "linewidth": 0.4}
        ax.bar(list(some), [one.overlap for one in some.values()], 0.92 * width, label=printable(other), **look)
        _write(ax, some)
    ax.set_xticks(range(len(gates)), [f"gate before block {gate}" for gate in gates])
    ax.tick_params(axis="x", length=0)
    ax.set_ylim(0, 1.08)
    ax.set_yticks(np.linspace(0, 1, 6))
    percent_axis(ax.yaxis)
    ax.set_ylabel("overlap with the gate's choice")
    ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    entitle(ax, title, "; ".join(filter(None, [settings, HOW])))
    return ax


def _write(ax: Axes, some: Mapping[float, Agreement]) -> None:
    """The correlation above every bar, by its place."""
    for place, one in some.items():
        if one.correlation is None:
            continue
        ax.annotate(
            f"{one.correlation:+.2f}".replace("-", "−"), (place, one.overlap), xytext=(0, 1.5),
            textcoords="offset points", ha="center", va="bottom", fontsize=6.3, gid="correlation",
        )  # fmt: skip
