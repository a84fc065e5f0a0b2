"""The z-score rule: a key's received attention lies more than k standard deviations above the mean over the keys.

The standard deviation is that of the population (divided by n). Among n values no z-score exceeds sqrt(n - 1), reached
when one key takes everything; a k at or above that is refused.

Where it misleads: a strong sink widens the deviation it is measured by, so two or three equal sinks hide each other in
a short sequence: m equal sinks that share everything score sqrt((n - m) / m).
"""

from dataclasses import dataclass
from math import isfinite, sqrt

import xarray as xr

from sinkscope.errors import UserError
from sinkscope.ordering import exceeds
from sinkscope.sinks.rules.base import KeyCounts, SinkRule
from sinkscope.sinks.rules.registry import sink_rule


@sink_rule("zscore")
@dataclass(frozen=True)
class ZScore(SinkRule):
    """Sinks receive more than mean + `k` population standard deviations over the existing keys."""

    k: float = 3.0

    def __post_init__(self) -> None:
        if not (isfinite(self.k) and self.k >= 0):
            raise UserError(f"k of rule 'zscore' must be a finite number of at least 0, got {self.k}")

    def refuse(self, keys: KeyCounts) -> None:
        if self.k >= sqrt(keys.most - 1):
            raise UserError(
                f"zscore with k {self.k:g} can never fire, the largest z-score among {keys.most} keys is "
                f"sqrt({keys.most - 1}) = {sqrt(keys.most - 1):.3g}: choose a smaller k"
            )

    def marks(self, received: xr.DataArray) -> xr.DataArray:
        return exceeds(received, received.mean("position") + self.k * received.std("position", ddof=0))
