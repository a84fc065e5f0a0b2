"""The top-k rule: the k existing keys that receive most, ties going to the lower position.

Where it misleads: it always finds k "sinks", in a uniform map too. Read it as a ranking, not as evidence of sinks.
Rows without any key (a group of queries that is empty at that step) get none.
"""

from dataclasses import dataclass

import xarray as xr

from sinkscope.errors import UserError
from sinkscope.ordering import highest
from sinkscope.sinks.rules.base import KeyCounts, SinkRule, whole_count
from sinkscope.sinks.rules.registry import sink_rule


@sink_rule("top-k")
@dataclass(frozen=True)
class TopK(SinkRule):
    """The `k` existing keys with the highest received attention in every row."""

    k: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "k", whole_count("top-k", self.k))

    def refuse(self, keys: KeyCounts) -> None:
        if self.k > keys.fewest:
            raise UserError(
                f"top-k with k {self.k} needs as many keys in every row, one has {keys.fewest}: choose a smaller k"
            )

    def marks(self, received: xr.DataArray) -> xr.DataArray:
        marked: xr.DataArray = xr.apply_ufunc(
            highest,
            received,
            kwargs={"k": int(self.k)},
            input_core_dims=[["position"]],
            output_core_dims=[["position"]],
        )
        return marked
