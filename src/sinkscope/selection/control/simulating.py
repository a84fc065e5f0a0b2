"""A controller on a channel that varies, replayed on its table.

    run = simulate(DriftPlusPenalty(table, 0.01, V=10), BlockFading(mean=5, correlation=0.9).draw(10_000, seed=0))
    run.mean_rate, run.mean_accuracy, run.queue, run.shares

Costs a tenth of a second for 10,000 slots. No picture is classified: an accuracy is what the table expects.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sinkscope.selection.control.rules.base import Controller, virtual_queue
from sinkscope.selection.control.table import Floats, Indices, OperatingPoint, check_snrs


@dataclass(frozen=True, eq=False, kw_only=True)
class Simulation:
    """What happened, slot by slot."""

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
        """Over all slots."""
        return float(self.accuracy.mean())

    @property
    def shares(self) -> dict[OperatingPoint, float]:
        """The share of slots that each chosen point had."""
        counts = np.bincount(self.chosen, minlength=len(self.points))
        return {self.points[one]: float(counts[one] / len(self.chosen)) for one in counts.nonzero()[0]}


def simulate(controller: Controller, snrs: npt.ArrayLike) -> Simulation:
    """Run a controller over SNRs in dB, (slot,). Raises `UserError` for what is no SNR."""
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
