"""What a sink rule is: a frozen dataclass that marks positions, and that can say beforehand when it never will.

A rule sees float64 received attention with a dim `position`; every other dim is carried along by name. Rules compare
within one row (one step, layer and head); nothing looks at a neighbouring step.
"""

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from math import isfinite
from typing import ClassVar

import xarray as xr

from sinkscope.errors import UserError


@dataclass(frozen=True)
class KeyCounts:
    """The smallest and the largest number of existing keys in the rows that a rule will see (empty rows aside)."""

    fewest: int
    most: int


@dataclass(frozen=True)
class SinkRule(ABC):
    """One rule that finds sinks. A new one is a new file in this folder: see `registry.py`."""

    name: ClassVar[str]

    @abstractmethod
    def refuse(self, keys: KeyCounts) -> None:
        """Raise `UserError` when the rule cannot do its work with so many keys, before any work starts."""

    @abstractmethod
    def marks(self, received: xr.DataArray) -> xr.DataArray:
        """Which positions are sinks: boolean, the dims of `received` `(..., position)`, float64, NaN without a key."""

    def settings(self) -> dict[str, str | float | int]:
        """The rule's name and parameters, as plain values from which `make_rule` builds it again."""
        return {"rule": self.name, **asdict(self)}


def whole_count(rule: str, k: float) -> int:
    """k of a rule, as a whole number. Raises `UserError` for a k that is none, or less than 1."""
    if not isfinite(k) or k != int(k) or k < 1:
        raise UserError(f"k of rule {rule!r} must be a whole number of at least 1, got {k}")
    return int(k)
