"""What a measure under compression is: something that is scored and weighed with keys dropped and without."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from sinkscope.compression import Compress
from sinkscope.evaluation.grids.base import GridMeasure
from sinkscope.evaluation.grids.outcomes import Outcome
from sinkscope.families import Model


@dataclass(frozen=True, kw_only=True)
class Weighed:
    """What was measured beside the score."""

    kept: float
    """Share of the keys of a cache with all keys that stayed, over all layers and examples."""
    cache_bytes: float
    """Of the keys and values of an example right after dropping, on average, and of what a dropping cache notes of
    them."""
    tokens: int
    """Generated or scored, of all examples."""


class Measure(GridMeasure, Protocol):
    """Something that gives one number an example, whatever keys are dropped."""

    @property
    def when(self) -> str:
        """When keys are dropped, a name of `ways.WAYS`."""

    def check(self, compress: Compress) -> None:
        """Raise `UserError` where this can't be measured."""

    def run(self, compress: Compress | None, observer: Callable[[int], None]) -> tuple[Outcome, Weighed]:
        """Measure; None keeps every key. observer: called with the number of examples done."""


MakeMeasure = Callable[[Model], Measure]
"""Checks and lays out a measure for a model. Raises `UserError` where the model can't be measured so."""
