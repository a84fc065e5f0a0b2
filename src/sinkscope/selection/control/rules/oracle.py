"""The best that can be done under the limit by one who knows all SNRs of the run beforehand.

With a price for rate, each slot takes the most of Acc - price rho. The mean rate falls as the price rises; bisection
finds the price at which it meets the limit. By linear-programming duality no sequence of choices whose mean rate keeps
the limit has a mean accuracy above `bound`, and this controller comes within one slot's gain of it.

Where it misleads: it cannot be used on a channel, only after it. Where many slots tie, as on a constant channel, it
spends first and saves last.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sinkscope.selection.control.rules.base import ROUNDING, Controller
from sinkscope.selection.control.rules.registry import controller
from sinkscope.selection.control.table import Floats, Indices

_HALVINGS = 60


@controller("oracle")
@dataclass(frozen=True, eq=False)
class Oracle(Controller):
    """Knows the future."""

    def choose_all(self, snrs: Floats) -> Indices:
        accuracy = self.table.accuracy_at(snrs)[:, self.allowed]
        low, high = self._prices(accuracy)
        saving, spending = self._choices(accuracy, high), self._choices(accuracy, low)
        rhos = self.table.rhos[self.allowed]
        extra = (rhos[spending] - rhos[saving]).clip(min=0)
        affordable = extra.cumsum() <= len(snrs) * self.limit * (1 + ROUNDING) - rhos[saving].sum()
        return self.allowed[np.where(affordable, spending, saving)]

    def bound(self, snrs: Floats) -> float:
        """A mean accuracy that no choices with a mean rate within the limit exceed on these SNRs."""
        accuracy = self.table.accuracy_at(snrs)[:, self.allowed]
        _, price = self._prices(accuracy)
        best = (accuracy - price * self.table.rhos[self.allowed]).max(1)
        return float(best.mean() + price * self.limit)

    def _choices(self, accuracy: Floats, price: float) -> Indices:
        """(slot,) numbers of `allowed`; of equals the cheapest, which comes first."""
        best: Indices = (accuracy - price * self.table.rhos[self.allowed]).argmax(1)
        return best

    def _prices(self, accuracy: Floats) -> tuple[float, float]:
        """Two prices next to each other: the lower spends too much, or is 0; the higher keeps the limit."""
        rhos = self.table.rhos[self.allowed]

        def keeps(price: float) -> bool:
            return bool(rhos[self._choices(accuracy, price)].mean() <= self.limit * (1 + ROUNDING))

        if keeps(0.0):
            return 0.0, 0.0
        low, high = 0.0, 1.0
        while not keeps(high):
            low, high = high, 2 * high
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            low, high = (low, middle) if keeps(middle) else (middle, high)
        return low, high
