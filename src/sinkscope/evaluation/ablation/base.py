"""What a measure is: something that a grid runs in each cell, checked and laid out once a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from sinkscope.evaluation.grids.outcomes import Outcome
from sinkscope.families import Model
from sinkscope.interventions import MaskSinks

Removal = dict[str, float | None]


class Measure(Protocol):
    """Something that gives one number an example, under any intervention."""

    @property
    def task(self) -> str:
        """Its name."""

    @property
    def n(self) -> int:
        """Number of examples."""

    @property
    def better(self) -> str:
        """Which scores are better, "high" or "low"."""

    @property
    def unit(self) -> str:
        """What a score is, in a few words."""

    @property
    def batch_size(self) -> int:
        """Examples run together; no score depends on it, up to rounding."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What to know before believing the numbers, a sentence each."""

    def check(self, intervention: MaskSinks) -> None:
        """Raise `UserError` where this intervention can't be measured so."""

    def run(self, intervention: MaskSinks | None, observer: Callable[[int], None]) -> tuple[Outcome, Removal | None]:
        """Measure. observer: called with the number of examples done."""

    def settings(self) -> dict[str, Any]:
        """Everything that decides the numbers, apart from the model and the intervention, as JSON."""


MakeMeasure = Callable[[Model], Measure]
"""Checks and lays out a measure for a model. Raises `UserError` where the model can't be measured so."""
