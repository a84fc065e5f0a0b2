"""A controller at work: SNR, what it chose, what it sent beside the limit, and what it owes, slot by slot.

Where there are more slots than can be seen, neighbours are put together: a line for their mean, a band from the least
to the most of them.

Where it misleads: the mean rate counts from the first slot on, so what was overspent early shows for long.
"""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from sinkscope.report.figures.labels import caption, entitle
from sinkscope.report.figures.style import BASE, COMMIT, INK, SINK, WIDE, house_style, percent_axis
from sinkscope.selection.control import Simulation

MOST = 400
"""Places along the axis."""
NOISELESS = "no noise"
_ROOM = 1.06
"""Of an axis, beyond what ends it."""
_SHOWN = 0.99
"""Of the slots, whose rates the axis takes."""
Floats = NDArray[np.float64]


@house_style
def queue_over_time(simulation: Simulation, limit: float, *, title: str = "", settings: str = "") -> Figure:
    """Draw a run whose mean rate has a limit: five panels, one above the other.

    title: above all of it, the rule and the channel for example. settings: added to the line below it.
    """
    slots = len(simulation.snr)
    figure = Figure(figsize=(WIDE, 5.2), layout="constrained")
    snr, share, rate, sent, queue = figure.subplots(5, 1, sharex=True)
    _snr(snr, simulation.snr)
    paint(share, simulation.alpha, "share\nchosen", COMMIT)
    paint(rate, simulation.rate, "rate\nchosen", COMMIT)
    share.set_ylim(0, _ROOM * max(point.alpha for point in simulation.points))
    rate.set_ylim(0, _ROOM * max(point.rate for point in simulation.points))
    percent_axis(share.yaxis)
    _sent(sent, simulation.rho, limit)
    paint(queue, simulation.queue, "queue Z", SINK)
    queue.set_ylim(bottom=0)
    queue.set_xlabel("slot")
    queue.set_xlim(0.5, slots + 0.5)
    if title:
        entitle(snr, title)
    figure.align_ylabels([snr, share, rate, sent, queue])
    caption(figure, "; ".join(filter(None, [settings, _how(simulation, limit)])))
    return figure


def paint(ax: Axes, values: Floats, name: str, color: str) -> None:
    """A value for each slot, the first of which is slot 1."""
    slots, means, lows, highs = gathered(values)
    if len(means) < len(values):
        ax.fill_between(slots, lows, highs, color=color, alpha=0.22, linewidth=0, gid="band")
        ax.plot(slots, means, color=color, linewidth=0.9, gid="mean")
    else:
        ax.step(slots, means, where="mid", color=color, linewidth=0.9, gid="mean")
    ax.set_ylabel(name)


def gathered(values: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    """(place,) middle slot, mean, least and most of neighbours, so many that at most `MOST` places are left."""
    starts = np.linspace(0, len(values), min(MOST, len(values)) + 1).astype(int)
    ends = starts[1:]
    means = np.add.reduceat(values, starts[:-1]) / np.diff(starts)
    lows, highs = np.minimum.reduceat(values, starts[:-1]), np.maximum.reduceat(values, starts[:-1])
    return (starts[:-1] + 1 + ends) / 2, means, lows, highs


def _snr(ax: Axes, snr: Floats) -> None:
    """Decibels; a slot without noise has none, and is left out."""
    ax.set_ylabel("SNR, dB")
    if np.isfinite(snr).all():
        paint(ax, snr, "SNR, dB", INK)
        return
    ax.plot(np.arange(1, len(snr) + 1), np.where(np.isfinite(snr), snr, np.nan), color=INK, linewidth=0.9)
    ax.annotate(NOISELESS, (0.01, 0.8), xycoords="axes fraction")
    if not np.isfinite(snr).any():
        ax.set_yticks([])


def _sent(ax: Axes, rho: Floats, limit: float) -> None:
    """Rate by slot, its mean from the first slot on, and the limit."""
    paint(ax, rho, "rho sent", BASE)
    slots = np.arange(1, len(rho) + 1)
    so_far = rho.cumsum() / slots
    shown = np.unique(np.linspace(0, len(rho) - 1, MOST).astype(int))
    ax.plot(slots[shown], so_far[shown], color=INK, linewidth=1.3, label="mean so far", gid="so-far")
    ax.axhline(limit, color=SINK, linestyle=(0, (4, 1.5)), linewidth=1.1, label=f"limit {limit:g}", gid="limit")
    ax.set_ylim(0, top_rate(rho, limit))
    ax.legend(loc="lower right", bbox_to_anchor=(1.0, 0.97), ncols=2, borderpad=0, borderaxespad=0, handlelength=2.6)


def top_rate(rho: Floats, limit: float) -> float:
    """Where the axis of rates ends: a few slots at the start may send far more than all others."""
    return _ROOM * max(float(np.quantile(rho, _SHOWN)), 2 * limit)


def _how(simulation: Simulation, limit: float) -> str:
    slots, top = len(simulation.rho), top_rate(simulation.rho, limit)
    drawn = "a step a slot"
    if slots > MOST:
        drawn = f"of about {slots / MOST:.0f} slots each: a line for the mean, a band from least to most"
    above = int((simulation.rho > top).sum())
    slots_above = f"{above} slot{'s' * (above != 1)}, up to {simulation.rho.max():.3g}"
    return drawn if not above else f"{drawn}; rho beyond its axis in {slots_above}"
