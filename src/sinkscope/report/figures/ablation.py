"""What it costs to mask sinks, beside controls: scores over the keys that were masked, with 95 % intervals.

One line for the sinks and one for each control, all from the one point of the plain run. The draws of a control are put
together: each example counts with the mean of its draws. A control that took less or more than the sinks of what it is
to equal is a hollow triangle, with the tip down for less and up for more. Numbers of keys are evenly spaced, whatever
lies between them; rules such as "first 1" stand apart at the right.

Where it misleads: intervals of two lines may overlap where the paired difference is clear; `sinkscope ablate` tests
differences in pairs. Intervals are about the choice of examples alone.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sinkscope.errors import UserError
from sinkscope.evaluation.conditions import PLAIN, SINKS
from sinkscope.experiments.masking import KeysCell, contrasts
from sinkscope.grids import Outcome, pool
from sinkscope.interventions import MaskSinks
from sinkscope.report.figures import style
from sinkscope.report.figures.cells import name_score, plain_point, score_line
from sinkscope.report.figures.inputs import Inputs
from sinkscope.report.figures.labels import caption, entitle, name_places, printable, shortened
from sinkscope.report.figures.making import figure
from sinkscope.report.traces import last_part

PLAIN_KEYS = "none"
INTERVALS = "bars: 95 % intervals over examples"
HOLLOW = "hollow triangles: controls that are no equals of the sinks, they took less (tip down) or more (tip up)"
ACROSS = 2
_TRIANGLES = {"less": "v", "more": "^"}
_FLOOR = 0.025
_APART = 0.09
"""Between the lines, in steps of the axis, so that their intervals do not hide each other."""


@style.house_style
def ablation_curves(rows: Sequence[KeysCell], *, ax: Axes | None = None) -> Axes:
    """Draw the cells of one model and task, masked in one way. Returns the axes, `ax` or new ones.

    Raises `UserError` for no cells, for cells of several models or tasks, and for several ways of masking.
    """
    if len({(row.model, row.task) for row in rows}) != 1:
        raise UserError("ablation curves take the cells of one model and one task: draw others on axes of their own")
    ways = _ways(rows)
    if len(ways) > 1:
        raise UserError(f"ablation curves take cells that are masked in one way, got {' and '.join(map(repr, ways))}")
    ax = style.fresh_axes(4.2, 2.7) if ax is None else ax
    paint(ax, rows)
    small_print = f"rule: as named below the axis; scale: that of the rule; {_how(rows)}; {bars_line([ax])}"
    entitle(ax, row_title(rows), small_print, lift=style.own_legend(ax))
    return ax


def bars_line(axes: Sequence[Axes]) -> str:
    """What bars are, and hollow points where there are any."""
    hollow = any(str(line.get_gid()).startswith("unequal") for ax in axes for line in ax.lines)
    return f"{INTERVALS}; {HOLLOW}" if hollow else INTERVALS


def paint(ax: Axes, rows: Sequence[KeysCell]) -> None:
    """The lines without title and legend."""
    keys = key_order(rows)
    kinds = list(dict.fromkeys(family_of(one) for one in keys[1:]))
    masked = list(dict.fromkeys(row.condition.masked for row in rows if row.condition.masked != PLAIN))
    masked.sort(key=lambda name: name != SINKS)
    for number, name in enumerate(masked):
        shift = (number - (len(masked) - 1) / 2) * _APART
        label: str | None = name
        for kind in kinds:
            cells = [one for one in keys if family_of(one) == kind or (kind == kinds[0] and one == PLAIN_KEYS)]
            there = {one: found for one in cells if (found := pooled(rows, one, name)) is not None}
            points = {one: (keys.index(one) + shift * (one != PLAIN_KEYS), found) for one, found in there.items()}
            if points:
                look = _look(number, name)
                score_line(ax, dict(points.values()), label, look, begun=PLAIN_KEYS in points)
                label = None
                mark_unequal(ax, rows, name, points, look["color"])
    plain = pooled(rows, PLAIN_KEYS, PLAIN)
    if plain is not None:
        plain_point(ax, plain)
    for place in range(2, len(keys)):
        if family_of(keys[place]) != family_of(keys[place - 1]):
            ax.axvline(place - 0.5, color=style.BASE, linewidth=0.5)
    name_places(ax, keys)
    restricted = any(one.layers is not None or one.heads is not None for one in _interventions(rows))
    ax.set_xlabel(f"keys masked in {'a' if restricted else 'every'} layer and head")
    name_score(ax, rows[0].better)
    if min(row.outcome.score for row in rows) >= 0:
        ax.set_ylim(bottom=-_FLOOR * ax.get_ylim()[1])  # points at 0 are seen whole


def mark_unequal(
    ax: Axes, rows: Sequence[KeysCell], control: str, points: Mapping[str, tuple[float, Outcome]], color: str
) -> None:
    """A hollow triangle in place of the points, by their keys, where the control is no equal of the sinks."""
    for one in contrasts(rows):
        if one.control == control and one.unequal is not None and one.keys in points:
            at, found = points[one.keys]
            ax.plot(
                [at], [found.score], linestyle="none", marker=_TRIANGLES[one.unequal], markersize=5.5, mfc="white",
                mec=color, mew=1.0, zorder=5, gid=f"unequal-{one.unequal}",
            )  # fmt: skip


def _look(number: int, name: str) -> dict[str, Any]:
    """Sinks stand out by colour, controls differ in colour, dash and marker; all are filled."""
    if name == SINKS:
        return {"color": style.SINK, "linestyle": "-", "marker": "o"}
    others = [one for one in style.LINES if one[0] != style.SINK]
    color, dash, marker = others[(number - 1) % len(others)]
    return {"color": color, "linestyle": dash, "marker": marker}


def key_order(rows: Sequence[KeysCell]) -> list[str]:
    """The plain run's "none", then the keys by kind of rule and rising number."""
    names = list(dict.fromkeys(row.condition.keys for row in rows if row.condition.masked != PLAIN))
    kinds = list(dict.fromkeys(family_of(name) for name in names))
    return [PLAIN_KEYS, *sorted(names, key=lambda name: (kinds.index(family_of(name)), _number(name)))]


def family_of(keys: str) -> str:
    """The kind of rule that a cell's keys are named after: "top-5" is of "top", "excess 3.0 sum" of "excess"."""
    return re.split(r"[- ]", keys)[0]


def _number(keys: str) -> float:
    found = re.search(r"\d+(\.\d+)?", keys)
    return float(found[0]) if found else 0.0


def pooled(rows: Sequence[KeysCell], keys: str, masked: str) -> Outcome | None:
    """All draws of a cell as one outcome, example by example; for "none" the plain run; None where there is none."""
    wanted = PLAIN if keys == PLAIN_KEYS else masked
    return pool([row.outcome for row in rows if row.condition.masked == wanted and row.condition.keys == keys])


def row_title(rows: Sequence[KeysCell]) -> str:
    """Model, task, number of examples, and how keys are masked where that is not as published."""
    what = f"{printable(shortened(last_part(rows[0].model), 40))}, {printable(rows[0].task)}, n = {rows[0].outcome.n}"
    one = rows[0].condition
    dropped = "" if one.compression is None else f"dropped {printable(one.dropping)} at {one.kept}"
    return ", ".join([what, *(shortened(way, 40) for way in (*_ways(rows), dropped) if way)])


def _ways(rows: Sequence[KeysCell]) -> list[str]:
    """How keys are masked."""
    return list(dict.fromkeys(row.condition.masking for row in rows if row.condition.intervention is not None))


def _how(rows: Sequence[KeysCell]) -> str:
    """Queries that lose keys, and how they are found and taken away, in words."""
    return "; ".join(dict.fromkeys(_in_words(one) for one in _interventions(rows)))


def _in_words(masking: MaskSinks) -> str:
    queries = "all" if masking.queries is None else " ".join(masking.queries)
    how = masking.how if masking.reference is None else f"{masking.how} of {masking.reference}"
    return f"queries: {queries}; detect {masking.detect}, detect from {masking.detect_from}, how {how}"


def _interventions(rows: Sequence[KeysCell]) -> list[MaskSinks]:
    return [row.condition.intervention for row in rows if row.condition.intervention is not None]


@figure("ablation", "scores when sinks or controls are masked, with 95 % intervals")
def ablation_panels(inputs: Inputs) -> Figure:
    """One panel for every model and task."""
    if not inputs.ablations:
        raise UserError("no ablation was given (--ablation FOLDER)")
    drawn, axes = style.panels(len(inputs.ablations), height=2.3, across=ACROSS)
    for ax, one in zip(axes, inputs.ablations, strict=True):
        paint(ax, one.rows)
        entitle(ax, row_title(one.rows))
    if len({tuple(key_order(one.rows)) for one in inputs.ablations}) == 1:
        style.only_outer_labels(axes)
    style.legend_above(drawn, of=axes)
    masking = _how([row for one in inputs.ablations for row in one.rows])
    caption(drawn, f"rule: as named below the axes; {masking}; {bars_line(axes)}")
    return drawn
