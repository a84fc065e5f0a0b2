"""A controller on a channel that varies, replayed on its table; and the V of drift plus penalty that keeps the limit.

    run = simulate(DriftPlusPenalty(table, 0.01, V=10), BlockFading(mean=5, correlation=0.9).draw(10_000, seed=0))
    run.mean_rate, run.mean_accuracy, run.queue, run.shares

Costs a tenth of a second for 10,000 slots. No picture is classified: an accuracy is what the table expects.

Where `choose_v` misleads: as long as the queue is not empty, the mean rate of the last L slots is the limit + (growth
of the queue) / (mu L), so a V that keeps the limit well may miss it by a hair or not, by where its cycle happens to
stand. `slack` forgives a hair; 0 is the published rule. And it looks at the end alone: what was overspent while the
queue filled is not made up for, so a V may pass whose mean over the whole run is far above the limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from sinkscope.errors import UserError
from sinkscope.selection.control.rules import Controller, DriftPlusPenalty
from sinkscope.selection.control.table import Floats, Indices, OperatingPoint, OperatingTable, check_snrs


@dataclass(frozen=True, eq=False, kw_only=True)
class Simulation:
    points: tuple[OperatingPoint, ...]
    """What could have been chosen"""
    snr: Floats
    """(slot,) in dB"""
    chosen: Indices
    """(slot,) numbers of `points`"""
    rho: Floats
    """(slot,) rate that was sent"""
    accuracy: Floats
    """(slot,) accuracy that the table expects"""
    queue: Floats
    """(slot,) the virtual queue after the slot; it is 0 before the first"""

    @property
    def alpha(self) -> Floats:
        """(slot,) share of patches."""
        return np.array([point.alpha for point in self.points])[self.chosen]

    @property
    def rate(self) -> Floats:
        """(slot,) rate of the codec."""
        return np.array([point.rate for point in self.points])[self.chosen]

    @property
    def mean_rate(self) -> float:
        """Of rho, what the limit is on."""
        return float(self.rho.mean())

    @property
    def mean_accuracy(self) -> float:
        return float(self.accuracy.mean())

    @property
    def shares(self) -> dict[OperatingPoint, float]:
        """The share of slots that each chosen point had."""
        counts = np.bincount(self.chosen, minlength=len(self.points))
        return {self.points[one]: float(counts[one] / len(self.chosen)) for one in counts.nonzero()[0]}


def simulate(controller: Controller, snrs: npt.ArrayLike) -> Simulation:
    """Run a controller over SNRs in dB, (slot,). Raises `UserError` for NaN and minus infinity."""
    given = check_snrs(snrs)
    chosen = controller.choose_all(given)
    rho = controller.table.rhos[chosen]
    return Simulation(
        points=controller.table.points,
        snr=given,
        chosen=chosen,
        rho=rho,
        accuracy=controller.table.accuracy_at(given)[np.arange(len(given)), chosen],
        queue=virtual_queue(rho, controller.limit, controller.mu),
    )


def virtual_queue(rho: Floats, limit: float, mu: float) -> Floats:
    """Z after every slot: Z <- max(0, Z + mu (rho - limit)), from 0. rho (slot,)."""
    steps = (mu * (rho - limit)).tolist()
    return np.array(list(accumulate(steps, lambda queue, step: max(0.0, queue + step), initial=0.0))[1:])


def choose_v(
    table: OperatingTable,
    limit: float,
    values: Sequence[float],
    snrs: npt.ArrayLike,
    *,
    mu: float = 1.0,
    latency_limit: float | None = None,
    last: int = 1000,
    slack: float = 0.0,
) -> float:
    """The largest of `values` whose mean rate over the last slots of SNRs in dB, (slot,), is within the limit (arXiv
    2505.17604).

    slack: by which share of the limit it may be missed.
    Raises `UserError` for fewer slots than `last`, and where no value keeps the limit.
    """
    given = check_snrs(snrs)
    if not 1 <= last <= len(given):
        raise UserError(f"last must lie between 1 and the {len(given)} slots simulated; got {last}")
    if slack < 0:
        raise UserError(f"slack must not be negative, a share of the limit; got {slack:g}")
    for V in sorted(values, reverse=True):
        chosen = DriftPlusPenalty(table, limit, V, mu=mu, latency_limit=latency_limit).choose_all(given)
        if table.rhos[chosen][-last:].mean() <= limit * (1 + slack):
            return V
    raise UserError(
        f"none of V = {', '.join(f'{V:g}' for V in values) or 'nothing'} keeps a mean rate of {limit:g} over the last "
        f"{last} slots: try smaller ones, more slots, or some slack"
    )
