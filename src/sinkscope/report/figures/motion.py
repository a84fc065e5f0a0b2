"""Where the strongest key stands step by step (Fig. 7), how long sinks live, and how far the strongest key moves.

The strongest key of `top_positions` is that of the mean over layers and heads; steps at which the group has no query
leave a gap. Thin lines mark where prompts end. Position 0 is at the top, as in the heat map.

Lifetimes are drawn as survival: the share of sinks still alive after so many steps, by Kaplan and Meier's estimator
(`sinks.motion.survivors`, as in the table "lifetimes"). A life is a run of steps at which one (layer, head, position)
is a sink. A sink that is alive at the last step is censored: it counts as alive as long as it was seen, and a tick on
the line marks where. Displacement is signed, positive to the right, counted in bins that double in width.

Where it misleads: there is a strongest key in a flat map too; the line says nothing of its strength. In an
autoregressive model every step asks another query, so lives are shorter and moves longer for that reason alone; and
with few steps the tail rests on few sinks.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from sinkscope.errors import UserError
from sinkscope.report.figures import style
from sinkscope.report.figures.heat_map import depth_line
from sinkscope.report.figures.inputs import RULE, Inputs, firsts_of, found_in, views
from sinkscope.report.figures.labels import caption, entitle, made_by, sample_label, unlike_steps
from sinkscope.report.figures.making import figure
from sinkscope.sinks import SinkRule, displacement, received_from, sink_positions
from sinkscope.sinks.find import NOWHERE
from sinkscope.sinks.motion import lifetime_counts, survivors
from sinkscope.sinks.tables.base import add_sums

STRONGEST = "the strongest key"
_MARKERS = 16
"""On a line, about."""
_NESTED, _MOST_NESTED = 1.6, 2
"""A line and its markers are by so much larger than those of the next, which lies on top of it, so that lines at one
place are all seen; so often from the usual size on, then smaller than it."""


@style.house_style
def top_positions(samples: Mapping[str, xr.Dataset], *, group: str = "all", ax: Axes | None = None) -> Axes:
    """Draw one line for each sample, by its label. Returns the axes, `ax` or new ones."""
    ax = style.fresh_axes(4.6, 2.7) if ax is None else ax
    last = 0
    for number, (label, sample) in enumerate(samples.items()):
        color, dash, marker = style.LINES[number % len(style.LINES)]
        where = sink_positions(sample, received=received_from(sample, group))["overall"]
        known = where.where(where != NOWHERE)
        every = max(1, known.sizes["step"] // _MARKERS)
        larger = _NESTED ** (min(len(samples) - 1, _MOST_NESTED) - number)
        ax.plot(
            known["step"], known, color=color, linestyle=dash, marker=marker, label=label, clip_on=False,
            in_layout=False, linewidth=1.1 * larger, markersize=3.0 * larger, markevery=(number % every, every),
        )  # fmt: skip
        last = max(last, int(sample["position"].max()))
    for length in sorted({int(sample.attrs.get("prompt_length", 0)) for sample in samples.values()} - {0}):
        ax.axhline(length - 0.5, color=style.SOFT, linewidth=0.5, gid="prompt", zorder=1)
    ax.set_ylim(last + 0.5, -0.5)
    ax.set_xlabel("step")
    ax.set_ylabel("position of the strongest key")
    style.whole_ticks(ax.xaxis)
    style.whole_ticks(ax.yaxis)
    one = next(iter(samples.values()))
    title = sample_label(one) if len(samples) == 1 else "position of the strongest key"
    lift = style.own_legend(ax) if len(samples) > 1 else 0.0
    said = (depth_line(one), "thin line: end of a prompt", *unlike_steps(samples.values()))
    entitle(ax, title, made_by(STRONGEST, None, group, *said), lift=lift)
    return ax


@figure("top-position", "position of the strongest key by step, for all traces (Fig. 7)")
def all_top_positions(inputs: Inputs) -> Figure:
    """One line a trace, on the same axes."""
    samples = {f"{one.label}: {one.sample.attrs['id']}": one.sample for one in inputs.traced()}
    return style.owner(top_positions(samples, group=inputs.group))


LIVES = (
    "every sink of every layer and head, Kaplan-Meier; ticks: sinks alive at the last step, whose end is not seen "
    "(censored)"
)
MOVES = "strongest key of every layer and head"
ONE_STEP = "there is but one step, in which nothing lives or moves"
LIVED, MOVED = "how long sinks live", "how far the strongest key moves"
_Some = Iterable[xr.Dataset]
Moves = tuple[list[str], NDArray[np.float64]]
"""Names of bins, from far left to far right, and the share of moves in each."""


def survival(samples: _Some, rule: SinkRule, *, group: str = "all") -> xr.DataArray:
    """Share of sinks that are still alive after a number of steps, `(steps,)`, from 0 on, where it is 1.

    Coordinate `censored (steps,)`: sinks that had lived so long at the last step. Raises `UserError` where there are no
    two steps or no sinks.
    """
    total: xr.Dataset | None = None
    longest = 0
    for view in views(samples, rule, group):
        longest = max(longest, view.sinks.sizes["step"])
        counts = lifetime_counts(view.sinks).sum("layer")
        total = counts if total is None else add_sums(total, counts)
    if longest < 2:
        raise UserError(ONE_STEP)
    if total is None or not bool((total["runs"] > 0).any()):
        raise UserError("the rule finds no sinks: choose a milder one")
    steps = np.concatenate([[0], total["lifetime"].values])
    alive = np.concatenate([[1.0], survivors(total).values])
    censored = np.concatenate([[0], total["censored"].values])
    return xr.DataArray(alive, dims="steps", coords={"steps": steps, "censored": ("steps", censored)}, name="alive")


def move_shares(samples: _Some, *, group: str = "all") -> Moves:
    """Share of moves in each bin of signed displacement, and the bins' names; bins reach as far as any move.

    Raises `UserError` where no two neighbouring steps have a strongest key.
    """
    moves = [np.zeros(0)]
    for view in views(samples, RULE, group):
        signed = displacement(view.positions[view.finest]).values.ravel()
        moves.append(signed[np.isfinite(signed)])
    every = np.concatenate(moves)
    if every.size == 0:
        raise UserError(ONE_STEP)
    number = np.sign(every) * np.ceil(np.log2(np.abs(every) + 1))  # 0; 1; 2, 3; 4 to 7; ...
    reach = max(1, int(np.abs(number).max()))
    bins = np.arange(-reach, reach + 1)
    return [bin_name(int(one)) for one in bins], np.array([(number == one).mean() for one in bins])


def bin_name(number: int) -> str:
    """Of bin 0, 1, 2, 3 ...: "0", "+1", "+2 to +3", "+4 to +7"; to the left with a minus."""
    low, high = 2 ** (abs(number) - 1) if number else 0, 2 ** abs(number) - 1
    if number < 0:
        low, high = -high, -low
    return f"{low:+d}" if low == high != 0 else f"{low:+d} to {high:+d}" if number else "0"


@style.house_style
def lifetime_curves(
    samples: Mapping[str, _Some], rule: SinkRule = RULE, *, group: str = "all", ax: Axes | None = None
) -> Axes:
    """Draw survival, one line for the samples under each label. Returns the axes, `ax` or new ones."""
    ax = style.fresh_axes(4.2, 2.6) if ax is None else ax
    firsts, every = firsts_of(samples)
    paint_lives(ax, {label: survival(some, rule, group=group) for label, some in every.items()})
    lift = style.own_legend(ax) if len(samples) > 1 else 0.0
    entitle(ax, _titled(samples, LIVED), made_by(rule, None, group, LIVES, *unlike_steps(firsts)), lift=lift)
    return ax


@style.house_style
def displacement_shares(samples: Mapping[str, _Some], *, group: str = "all", ax: Axes | None = None) -> Axes:
    """Draw how far the strongest keys move, one line for the samples under each label. Returns the axes."""
    ax = style.fresh_axes(4.2, 2.8) if ax is None else ax
    firsts, every = firsts_of(samples)
    paint_moves(ax, {label: move_shares(some, group=group) for label, some in every.items()})
    said = made_by(STRONGEST, None, group, MOVES, *unlike_steps(firsts))
    entitle(ax, _titled(samples, MOVED), said, lift=style.own_legend(ax))
    return ax


def paint_lives(ax: Axes, alive: Mapping[str, xr.DataArray], among: Sequence[str] = ()) -> None:
    """Survival curves by label, without title; among: labels of a figure with lines of the same colours elsewhere."""
    for label, share in alive.items():
        color, dash, _ = _look(label, among or [*alive])
        ax.plot(
            share["steps"], share, color=color, linestyle=dash, label=label, drawstyle="steps-post", clip_on=False,
            in_layout=False,
        )  # fmt: skip
        seen = share[share["censored"].values > 0]
        ax.plot(
            seen["steps"], seen, linestyle="none", marker="|", markersize=5, mec=color, clip_on=False, in_layout=False,
            gid="censored",
        )  # fmt: skip
    ax.set_xlim(left=0)
    ax.set_ylim(0, 1)
    ax.set_xlabel("steps")
    ax.set_ylabel("sinks still alive")
    style.whole_ticks(ax.xaxis)
    style.percent_axis(ax.yaxis)


def paint_moves(ax: Axes, found: Mapping[str, Moves], among: Sequence[str] = ()) -> None:
    """Shares of moves by label, without title; those that do not move are told in the legend. among: as above."""
    names = max((bins for bins, _ in found.values()), key=len)
    for label, (bins, shares) in found.items():
        color, dash, marker = _look(label, among or [*found])
        places = np.arange(len(bins)) + (len(names) - len(bins)) // 2
        still = np.arange(len(bins)) == len(bins) // 2
        name = f"{label}, stays: {shares[still][0]:.0%}"
        ax.plot(
            places, np.where(still, np.nan, shares), color=color, linestyle=dash, marker=marker, label=name,
            clip_on=False, in_layout=False,
        )  # fmt: skip
    ax.set_xticks(np.arange(len(names)), names, rotation=45, ha="right", rotation_mode="anchor")
    ax.set_ylim(bottom=0)
    ax.set_xlabel("positions moved from one step to the next")
    ax.set_ylabel("share of all steps")
    style.percent_axis(ax.yaxis)


def _look(label: str, among: Sequence[str]) -> tuple[str, Any, str]:
    """Colour, dash and marker."""
    return style.LINES[among.index(label) % len(style.LINES)]


def _titled(samples: Mapping[str, object], what: str) -> str:
    return f"{next(iter(samples))}: {what}" if len(samples) == 1 else what


@figure("lifetimes", "how long sinks live, and how far the strongest key moves, for all traces")
def lives_and_moves(inputs: Inputs) -> Figure:
    """Two panels, one line a trace in each, over all its samples."""
    subjects = inputs.traced()
    lives, no_lives = found_in(subjects, lambda one: survival(one.samples, inputs.rule, group=inputs.group))
    moves, no_moves = found_in(subjects, lambda one: move_shares(one.samples, group=inputs.group))
    drawn, (left, right) = style.panels(2, height=2.9, share=False)
    labels = [one.label for one in subjects]
    paint_lives(left, lives, labels)
    paint_moves(right, moves, labels)
    lift = max(style.own_legend(left), style.own_legend(right))
    entitle(left, _titled(lives, LIVED), lift=lift)
    entitle(right, _titled(moves, MOVED), lift=lift)
    unlike = unlike_steps(one.sample for one in subjects)
    said = (f"left: {LIVES}", *no_lives, f"right: {MOVES}", *no_moves, *unlike)
    caption(drawn, made_by(inputs.rule, None, inputs.group, *said))
    return drawn
