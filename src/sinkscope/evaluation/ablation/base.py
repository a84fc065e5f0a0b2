"""What a measure is: something that a grid runs in each cell, checked and laid out once a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from sinkscope.errors import UserError
from sinkscope.evaluation.ablation.outcomes import Outcome
from sinkscope.evaluation.base import ROOM
from sinkscope.families import Model
from sinkscope.interventions import MaskSinks

Removal = dict[str, float | None]
Item = TypeVar("Item")


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


def check_naming(check: Callable[[Sequence[Item]], None], items: Sequence[Item], name: Callable[[int], str]) -> None:
    """Check all items together; a `UserError` that comes of one of them names it. name: of an item, by its number."""
    try:
        check(items)
    except UserError as error:
        guilty = [number for number, item in enumerate(items) if _refusal(check, item) == str(error)]
        which = f" ({name(guilty[0])})" if 0 < len(guilty) < len(items) else ""
        raise UserError(f"{error}{which}") from error


def _refusal(check: Callable[[Sequence[Item]], None], item: Item) -> str | None:
    try:
        check([item])
    except UserError as error:
        return str(error)
    return None
