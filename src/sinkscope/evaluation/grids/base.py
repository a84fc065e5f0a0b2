"""What every measure that a grid runs tells of itself."""

from __future__ import annotations

from typing import Any, Protocol


class GridMeasure(Protocol):
    """Something that gives one number an example, whatever the grid varies; checked and laid out once a model."""

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

    def settings(self) -> dict[str, Any]:
        """Everything that decides the numbers, apart from the model and what the grid varies, as JSON."""
