"""Rules that choose a point of a table for every slot, under a limit on the mean rate.

The limit is on rho, the complex symbols sent over the numbers of a picture. It is a mean: a single slot may send more,
if others send less. The virtual queue counts how far the slots so far are over it.

`drift-plus-penalty` (Lyapunov; arXiv 2505.17604, METHODS section 4) trades accuracy now against rate owed. Each slot
takes the point of the least -V Acc(alpha, r, SNR) + Z rho, of equals the cheapest; then Z <- max(0, Z + mu (rho -
limit)). It needs no knowledge of the channel to come. What it promises, for any SNRs whatever: after T slots the mean
rate is at most limit + Z_T / (mu T), and Z never exceeds `queue_bound`, which grows with V. Larger V is more accurate
(the loss against the best possible shrinks like mu / V where the channel is stationary) and slower to keep the limit.
Only V / mu matters: the two together scale Z.

`fixed` takes one point for all slots: the most accurate, on average over the run, of those that keep the limit in every
slot. It is told the SNRs of the run beforehand, so no point chosen in advance can beat it.

`oracle` is the best that can be done under the limit by one who knows all SNRs beforehand. With a price for rate, each
slot takes the most of Acc - price rho. The mean rate falls as the price rises; bisection finds the price at which it
meets the limit. By linear-programming duality no sequence of choices whose mean rate keeps the limit has a mean
accuracy above `bound`, and this controller comes within one slot's gain of it.

Where they mislead: over a short time a large V simply overspends, so look at the mean rate beside the mean accuracy.
The oracle cannot be used on a channel, only after it; where many slots tie, as on a constant channel, it spends first
and saves last.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from sinkscope.discovery import Register
from sinkscope.errors import UserError
from sinkscope.selection.control.table import Floats, Indices, OperatingPoint, OperatingTable

ROUNDING = 1e-9
"""Share of the limit. A rate of .25 x .1 x .1 is a little more than .0025 in binary; .0025 keeps it all the same."""
_HALVINGS = 60

_REGISTER: Register[Controller] = Register("controller")
CONTROLLERS, controller = _REGISTER.kinds, _REGISTER.file


def find_controller(name: str, table: OperatingTable, limit: float, **settings: Any) -> Controller:
    """The controller called `name`. Raises `UserError` for an unknown name, and for what the controller refuses."""
    return _REGISTER.find(name)(table, limit, **settings)


@dataclass(frozen=True, eq=False)
class Controller(ABC):
    """One way to choose.

    Raises `UserError` where no point of the table is within the latency limit, and where even the cheapest of those
    sends more than the limit.
    """

    name: ClassVar[str]
    table: OperatingTable
    limit: float
    """The mean rate allowed, as rho"""
    mu: float = field(default=1.0, kw_only=True)
    """Step of the virtual queue"""
    latency_limit: float | None = field(default=None, kw_only=True)
    """Seconds that a picture may take; points that take longer are never chosen"""

    def __post_init__(self) -> None:
        for name in ("limit", "mu", "latency_limit"):
            value = getattr(self, name)
            if value is not None and not 0 < value < np.inf:
                raise UserError(f"{name} must be a positive number; got {value:g}")
        cheapest = self.table.rhos[self.allowed[0]]
        if cheapest > self.limit * (1 + ROUNDING):
            within = "" if self.latency_limit is None else f" of those within {self.latency_limit:g} s"
            raise UserError(
                f"a mean rate of {self.limit:g} can't be kept: the cheapest point of the table{within} sends "
                f"{cheapest:g}; raise the limit or measure smaller shares or rates"
            )
        self.check()

    @cached_property
    def allowed(self) -> Indices:
        """The points within the latency limit, the cheapest first. Raises `UserError` where there are none."""
        order = self.table.rhos.argsort(kind="stable")
        if self.latency_limit is None:
            return order
        latencies = self.table.latencies
        if latencies is None:
            raise UserError("a latency limit needs a table with latencies: measure them, or leave the limit out")
        within = order[latencies[order] <= self.latency_limit]
        if not len(within):
            raise UserError(
                f"no point of the table is within {self.latency_limit:g} s: the fastest takes {latencies.min():g} s"
            )
        return within

    def check(self) -> None:
        """Raise `UserError` for settings of the rule itself that cannot be."""
        return

    @abstractmethod
    def choose_all(self, snrs: Floats) -> Indices:
        """The point for every slot of SNRs in dB, (slot,): numbers of `table.points`."""


@controller("drift-plus-penalty")
@dataclass(frozen=True, eq=False)
class DriftPlusPenalty(Controller):
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


@controller("fixed")
@dataclass(frozen=True, eq=False)
class Fixed(Controller):
    def choose_all(self, snrs: Floats) -> Indices:
        affordable = self.allowed[self.table.rhos[self.allowed] <= self.limit * (1 + ROUNDING)]
        mean = self.table.accuracy_at(snrs)[:, affordable].mean(0)
        return np.full(len(snrs), affordable[mean.argmax()], dtype=np.intp)


@controller("oracle")
@dataclass(frozen=True, eq=False)
class Oracle(Controller):
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
