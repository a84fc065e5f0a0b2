"""Drift plus penalty (Lyapunov; arXiv 2505.17604, METHODS section 4): trade accuracy now against rate owed.

Each slot takes the point of the least -V Acc(alpha, r, SNR) + Z rho, of equals the cheapest; then
Z <- max(0, Z + mu (rho - limit)). It needs no knowledge of the channel to come.

What it promises, for any SNRs whatever: after T slots the mean rate is at most limit + Z_T / (mu T), and Z never
exceeds `queue_bound`, which grows with V. Larger V is more accurate (the loss against the best possible shrinks like
mu / V where the channel is stationary) and slower to keep the limit. Only V / mu matters: the two together scale Z.

Where it misleads: over a short time a large V simply overspends. Look at the mean rate beside the mean accuracy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sinkscope.errors import UserError
from sinkscope.selection.control.rules.base import Controller
from sinkscope.selection.control.rules.registry import controller
from sinkscope.selection.control.table import Floats, Indices, OperatingPoint


@controller("drift-plus-penalty")
@dataclass(frozen=True, eq=False)
class DriftPlusPenalty(Controller):
    """The rule of the paper."""

    V: float
    """Weight of the accuracy; 0 takes the cheapest point always"""

    def check(self) -> None:
        if not 0 <= self.V < np.inf:
            raise UserError(f"V must be a number that is not negative, the weight of the accuracy; got {self.V:g}")

    def choose(self, snr: float, queue: float) -> OperatingPoint:
        """The point for one slot, for use on a channel that is not simulated."""
        return self.table.points[self._pick(self.table.accuracy_at([snr])[0], queue)]

    def update(self, queue: float, rho: float) -> float:
        """The queue after a slot in which so much was sent."""
        return max(0.0, queue + self.mu * (rho - self.limit))

    def choose_all(self, snrs: Floats) -> Indices:
        rhos, queue = self.table.rhos.tolist(), 0.0
        chosen = []
        for accuracy in self.table.accuracy_at(snrs):
            chosen.append(self._pick(accuracy, queue))
            queue = self.update(queue, rhos[chosen[-1]])
        return np.array(chosen, dtype=np.intp)

    @property
    def queue_bound(self) -> float:
        """What Z never exceeds, whatever the SNRs.

        Past V times the steepest gain of accuracy for rate the cheapest point is chosen, and Z does not grow; before
        that one slot adds at most mu (rho - limit).
        """
        rhos = self.table.rhos[self.allowed]
        accuracy = self.table.accuracy.reshape(len(self.table.points), -1)[self.allowed]
        dearer = rhos > rhos[0]
        gained = (accuracy[dearer] - accuracy[0]).max(axis=1)
        steepest = (gained / (rhos[dearer] - rhos[0])).max(initial=0.0)
        return float(self.V * steepest + self.mu * max(0.0, rhos[-1] - self.limit))

    def _pick(self, accuracy: Floats, queue: float) -> int:
        """accuracy (point,)"""
        cost = queue * self.table.rhos[self.allowed] - self.V * accuracy[self.allowed]
        # The cheapest come first, and argmin takes the first of equals.
        return int(self.allowed[cost.argmin()])
