"""What a share of the patches is worth, and how far gates choose what other ways would have chosen.

Accuracy over the share that was really sent: a line for each way to choose, one panel a link, SNR by SNR. All lines of
ways that keep their budget end in the same point, all patches. Random patches are grey, and all their draws one line; a
picture sent as a file stands at the share whose symbols it takes.

Agreement: overlap of two choices beside that of chance. A group a gate, a bar each for chance and for every other way;
above each bar the rank correlation of the scores.

Where it misleads: intervals are over pictures, so those of two lines may overlap where the paired difference is clear;
`sinkscope select evaluate` tests differences in pairs. Of several models the line is their mean, and a small dot each.
At a large share all choices overlap; look at what a bar has more than chance. Correlation is over all patches that are
still there, overlap over those that the gate keeps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from pathlib import PurePath
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sinkscope.errors import UserError
from sinkscope.experiments.pictures import CONTROL, EXACT, WHOLE, PatchCondition, channel_label, snr_label
from sinkscope.experiments.points import PatchCell, Point, points, widest
from sinkscope.report.figures import style
from sinkscope.report.figures.labels import caption, entitle, printable, shortened
from sinkscope.selection.agreement import Agreement

INTERVALS = "bars: 95 % intervals over pictures; all draws together; lines that share a place stand a little apart"
_APART = 0.006
"""Between lines that keep the same budget, so that their intervals do not hide each other."""
_LOOK = {"color": style.SOFT, "linestyle": ":", "marker": "x", "markersize": 4.0}
"""Of random patches"""


@style.house_style
def share_curves(rows: Sequence[PatchCell], *, ax: Axes | None = None) -> Axes:
    """Draw the cells of one link. Returns the axes, `ax` or new ones.

    Raises `UserError` for cells of several links, data sets or sets of models.
    """
    links = _by_link(_shown(rows))
    if len(links) != 1:
        raise UserError("share curves take the cells of one channel, rate and SNR: draw others on axes of their own")
    [some] = links.values()
    ax = style.fresh_axes(4.2, 2.7) if ax is None else ax
    paint(ax, some, _looks(some))
    _name(ax)
    ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    entitle(ax, f"{_title(some[0])}; {link_label(some[0].condition)}", _how(some))
    return ax


@style.house_style
def accuracy_by_share(rows: Sequence[PatchCell]) -> Figure:
    """Draw all cells, a panel a link: tokens as they are first, then channels and rates, and falling SNRs.

    Raises `UserError` for no cells, and for those of several data sets or sets of models.
    """
    every = _shown(rows)
    links, looks = _by_link(every), _looks(every)
    across = 2 if len(links) in (2, 4) else 3
    figure, axes = style.panels(len(links), height=2.2, across=across)
    for ax, some in zip(axes, links.values(), strict=True):
        paint(ax, some, looks)
        _name(ax)
        entitle(ax, link_label(some[0].condition))
    ends = [end for ax in axes for end in ax.get_ylim()]
    for ax in axes:
        ax.set_ylim(min(ends), max(ends))
    style.only_outer_labels(axes)
    style.legend_above(figure, of=axes)
    caption(figure, f"{_title(every[0])}; {_how(every)}")
    return figure


def paint(ax: Axes, some: Sequence[Point], looks: Mapping[str, Mapping[str, Any]]) -> None:
    """The lines of one link without title and legend. looks: of all panels, so that each looks the same in all."""
    whole = [point for point in some if point.condition.way == WHOLE]
    order = list(looks)
    for label, found in (_by_way(some) or {WHOLE: whole}).items():
        exact = found[0].condition.mode == EXACT
        ends = whole if found is not whole and exact and not found[0].condition.digital else []
        line = sorted([*found, *ends], key=share_of)
        shift = (order.index(label) - (len(order) - 1) / 2) * _APART if exact else 0.0
        _line(ax, [share_of(point) + shift for point in line], line, label, looks[label])


def _line(ax: Axes, shares: Sequence[float], line: Sequence[Point], label: str, look: Mapping[str, Any]) -> None:
    """One line with its intervals, and a dot for each of several models."""
    values = np.array([[point.outcome.score, *point.outcome.interval()] for point in line])
    reach = np.abs(values[:, 1:] - values[:, :1]).T
    ax.errorbar(shares, values[:, 0], reach, elinewidth=0.6, label=printable(label), **look)
    if len(line[0].models) > 1:
        own = [(share, score) for share, point in zip(shares, line, strict=True) for score in point.scores.values()]
        places, scores = zip(*own, strict=True)
        ax.plot(places, scores, linestyle="", marker=".", markersize=2.5, color=look["color"], alpha=0.6, gid="models")


def share_of(point: Point) -> float:
    """The share of patches sent, mean over pictures; of a file the share that takes as many symbols."""
    sent = point.stat("sent")
    return point.condition.alpha if sent is None else sent


def link_label(cell: PatchCondition) -> str:
    """ "tokens as they are", "0 dB, awgn, rate 0.25"."""
    if cell.channel is None or cell.rate is None or cell.snr is None:
        return "tokens as they are"
    return f"{snr_label(cell.snr)}, {channel_label(cell.channel)}, rate {cell.rate:g}"


def _shown(rows: Sequence[PatchCell]) -> list[Point]:
    """The points of all models together, or of the one that there is."""
    found = widest(points(rows))
    if len({point.models for point in found}) != 1:
        raise UserError(
            "accuracy by share takes cells of one model, or of several that all saw the same pictures: draw others on "
            "their own"
        )
    return found


def _by_link(some: Sequence[Point]) -> dict[tuple[str, float, float], list[Point]]:
    """Sorted by channel, rate and falling SNR, tokens as they are first."""
    found: dict[tuple[str, float, float], list[Point]] = {}
    for point in some:
        _, channel, rate, snr = point.condition.place
        found.setdefault((channel or "", rate or 0.0, -inf if snr is None else -snr), []).append(point)
    return dict(sorted(found.items()))


def _by_way(some: Sequence[Point]) -> dict[str, list[Point]]:
    """Without the whole."""
    found: dict[str, list[Point]] = {}
    for point in some:
        if point.condition.way != WHOLE:
            found.setdefault(point.condition.label, []).append(point)
    return found


def _looks(some: Sequence[Point]) -> dict[str, dict[str, Any]]:
    """Colour, dash and marker of every way; files have empty markers, random patches stand back in grey."""
    cells = {label: found[0].condition for label, found in _by_way(some).items()} or {WHOLE: some[0].condition}
    colored = [label for label, cell in cells.items() if cell.way != CONTROL]
    looks: dict[str, dict[str, Any]] = {}
    for label, cell in cells.items():
        color, dash, marker = style.LINES[(colored.index(label) if label in colored else 0) % len(style.LINES)]
        look = {"color": color, "linestyle": dash, "marker": marker, **({"mfc": "white"} if cell.digital else {})}
        looks[label] = _LOOK if cell.way == CONTROL else look
    return looks


def _name(ax: Axes) -> None:
    ax.set_xlabel("share of patches sent")
    ax.set_ylabel("pictures classified rightly")
    for axis in (ax.xaxis, ax.yaxis):
        style.percent_axis(axis)


def _title(point: Point) -> str:
    return f"{model_title(point.name)}, {printable(point.task)}, n = {point.outcome.n}"


def _how(some: Sequence[Point]) -> str:
    several = len(some[0].models) > 1
    return INTERVALS + (f"; dots: each of {len(some[0].models)} models" if several else "")


HOW = "numbers: rank correlation (Spearman's), mean over pictures"
CHANCE = "chance"
_FILLS = ((style.SINK, ""), ("#2a86b8", "...."), ("#b9a2d3", "\\\\\\\\"), ("#4f8a2a", "xx"), ("#d69a00", "++"))
"""Colour and hatch of the first, second ... way that gates are compared with."""
_GROUP = 0.8
"""Of the room from one gate to the next."""


@style.house_style
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
    ax = style.fresh_axes(max(3.6, 1.7 + 1.7 * len(gates)), 2.6) if ax is None else ax
    width = _GROUP / (len(others) + 1)
    left = np.arange(len(gates)) - _GROUP / 2 + width / 2
    chances = [next(one.chance for one in agreements if one.gate == gate) for gate in gates]
    look: dict[str, Any] = {"facecolor": style.PAPER, "edgecolor": style.BASE, "hatch": style.HATCH, "linewidth": 0.4}
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
    style.percent_axis(ax.yaxis)
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


_LONGEST = 40


def model_title(name: str) -> str:
    """A shipped model's name, or the last two parts of a folder: every training calls its own `model`."""
    return printable(shortened("/".join(PurePath(name).parts[-2:]) or name, _LONGEST))
