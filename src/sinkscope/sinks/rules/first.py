"""The first-keys rule: the first k existing keys, whatever they receive.

It is the static sink of autoregressive models: the first token of a text, which is a sink in nearly all of them.

Where it misleads: it looks at places, not at attention. That a model has its sink there is for another rule to show.
"""

from dataclasses import dataclass

import xarray as xr

from sinkscope.errors import UserError
from sinkscope.sinks.rules.base import KeyCounts, SinkRule, whole_count
from sinkscope.sinks.rules.registry import sink_rule


@sink_rule("first")
@dataclass(frozen=True)
class First(SinkRule):
    """The first `k` existing keys of every row."""

    k: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "k", whole_count("first", self.k))

    def refuse(self, keys: KeyCounts) -> None:
        if self.k > keys.fewest:
            raise UserError(
                f"rule 'first' with k {self.k} needs as many keys in every row, one has {keys.fewest}: "
                "choose a smaller k"
            )

    def marks(self, received: xr.DataArray) -> xr.DataArray:
        exists = received.notnull()
        return exists & (exists.cumsum("position") <= self.k)
