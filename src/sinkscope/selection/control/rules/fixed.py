"""One point for all slots: the most accurate, on average over the run, of those that keep the limit in every slot.

It is told the SNRs of the run beforehand, so no point chosen in advance can beat it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sinkscope.selection.control.rules.base import ROUNDING, Controller
from sinkscope.selection.control.rules.registry import controller
from sinkscope.selection.control.table import Floats, Indices


@controller("fixed")
@dataclass(frozen=True, eq=False)
class Fixed(Controller):
    """What any adaptive controller must beat."""

    def choose_all(self, snrs: Floats) -> Indices:
        affordable = self.allowed[self.table.rhos[self.allowed] <= self.limit * (1 + ROUNDING)]
        mean = self.table.accuracy_at(snrs)[:, affordable].mean(0)
        return np.full(len(snrs), affordable[mean.argmax()], dtype=np.intp)
