"""What a controller is: it chooses a point of a table for every slot, under a limit on the mean rate.

The limit is on rho, the complex symbols sent over the numbers of a picture. It is a mean: a single slot may send more,
if others send less. How far the slots so far are over it is the virtual queue's business.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import numpy as np

from sinkscope.errors import UserError
from sinkscope.selection.control.table import Floats, Indices, OperatingTable


def virtual_queue(rho: Floats, limit: float, mu: float) -> Floats:
    """Z after every slot: Z <- max(0, Z + mu (rho - limit)), from 0. rho (slot,)."""
    queue, after = 0.0, np.empty(len(rho))
    for slot, step in enumerate((mu * (rho - limit)).tolist()):
        queue = max(0.0, queue + step)
        after[slot] = queue
    return after


ROUNDING = 1e-9
"""Share of the limit. A rate of .25 x .1 x .1 is a little more than .0025 in binary; .0025 keeps it all the same."""


@dataclass(frozen=True, eq=False)
class Controller(ABC):
    """One way to choose. A new one is a new file in this folder.

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
