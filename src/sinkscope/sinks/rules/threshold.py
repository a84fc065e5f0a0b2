"""The threshold rule: a key receives more than a fixed share of all attention (0.3 in 2410.10781, 0.8 elsewhere).

Where it misleads: the share is of all queries' attention. The causal metric of the same paper divides by the queries
that can see the key and therefore differs late in the sequence: see `ar.py`.
"""

from dataclasses import dataclass

import xarray as xr

from sinkscope.errors import UserError
from sinkscope.ordering import exceeds
from sinkscope.sinks.rules.base import KeyCounts, SinkRule
from sinkscope.sinks.rules.registry import sink_rule


@sink_rule("threshold")
@dataclass(frozen=True)
class Threshold(SinkRule):
    """Sinks receive more than the share `value` of the attention, 0 <= value < 1."""

    value: float = 0.3

    def __post_init__(self) -> None:
        if not 0 <= self.value < 1:
            raise UserError(f"value of rule 'threshold' is a share of attention, 0 <= value < 1, got {self.value}")

    def refuse(self, keys: KeyCounts) -> None:
        """Every share below 1 can be reached with any number of keys."""

    def marks(self, received: xr.DataArray) -> xr.DataArray:
        return exceeds(received, self.value)
