"""The largest V that keeps the limit once the queue has settled (arXiv 2505.17604).

Where it misleads: as long as the queue is not empty, the mean rate of the last L slots is the limit + (growth of the
queue) / (mu L), so a V that keeps the limit well may miss it by a hair or not, by where its cycle happens to stand.
`slack` forgives a hair; 0 is the published rule. And it looks at the end alone: what was overspent while the queue
filled is not made up for, so a V may pass whose mean over the whole run is far above the limit.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy.typing as npt

from sinkscope.errors import UserError
from sinkscope.selection.control.rules.drift_plus_penalty import DriftPlusPenalty
from sinkscope.selection.control.simulating import simulate
from sinkscope.selection.control.table import OperatingTable, check_snrs


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
    """The largest of `values` whose mean rate over the last slots of SNRs in dB, (slot,), is within the limit.

    slack: by which share of the limit it may be missed.
    Raises `UserError` for fewer slots than `last`, and where no value keeps the limit.
    """
    given = check_snrs(snrs)
    if not 1 <= last <= len(given):
        raise UserError(f"last must lie between 1 and the {len(given)} slots simulated; got {last}")
    if slack < 0:
        raise UserError(f"slack must not be negative, a share of the limit; got {slack:g}")
    for V in sorted(values, reverse=True):
        run = simulate(DriftPlusPenalty(table, limit, V, mu=mu, latency_limit=latency_limit), given)
        if run.rho[-last:].mean() <= limit * (1 + slack):
            return V
    raise UserError(
        f"none of V = {', '.join(f'{V:g}' for V in values) or 'nothing'} keeps a mean rate of {limit:g} over the last "
        f"{last} slots: try smaller ones, more slots, or some slack"
    )
