"""What a measure is: something that a grid runs in each cell, checked and laid out once a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from sinkscope.evaluation.grids.base import GridMeasure
from sinkscope.evaluation.grids.outcomes import Outcome
from sinkscope.families import Model
from sinkscope.interventions import MaskSinks

Removal = dict[str, float | None]


class Measure(GridMeasure, Protocol):
    """Something that gives one number an example, under any intervention."""

    def check(self, intervention: MaskSinks) -> None:
        """Raise `UserError` where this intervention can't be measured so."""

    def run(self, intervention: MaskSinks | None, observer: Callable[[int], None]) -> tuple[Outcome, Removal | None]:
        """Measure. observer: called with the number of examples done."""


MakeMeasure = Callable[[Model], Measure]
"""Checks and lays out a measure for a model. Raises `UserError` where the model can't be measured so."""
