"""What a measure is: something that a grid runs in each cell, checked and laid out once a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from sinkscope.evaluation.ablation.outcomes import Outcome
from sinkscope.evaluation.base import ROOM
from sinkscope.families import Model
from sinkscope.interventions import MaskSinks

Removal = dict[str, float | None]


@dataclass(frozen=True, kw_only=True)
class Examples:
    """Which examples, and how many together.

    n: number of them. seed: of their draw. room: tokens that an example's text may take. texts: where likelihoods and
        infilling take their texts from, a name of `texts.TEXTS` or a file with one text a line; None leaves it to the
        model.
    """

    n: int = 500
    seed: int = 0
    room: int = ROOM
    texts: str | None = None
    batch_size: int = 64


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

    def check(self, intervention: MaskSinks) -> None:
        """Raise `UserError` where this intervention can't be measured so."""

    def run(self, intervention: MaskSinks | None, observer: Callable[[int], None]) -> tuple[Outcome, Removal | None]:
        """Measure. observer: called with the number of examples done."""

    def settings(self) -> dict[str, Any]:
        """Everything that decides the numbers, apart from the model and the intervention, as JSON."""


MakeMeasure = Callable[[Model, Examples], Measure]
"""Checks and lays out a measure for a model. Raises `UserError` where the model can't be measured so."""
