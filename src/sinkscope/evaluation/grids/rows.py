"""What every finished cell of a grid states, whatever the grid varies."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sinkscope.evaluation.grids.outcomes import Outcome


@dataclass(frozen=True, kw_only=True)
class MeasuredRow:
    """One finished cell."""

    model: str
    task: str
    settings: Mapping[str, Any]
    """Everything that decided its numbers: model, measure, versions, and what the grid varies."""
    outcome: Outcome
    better: str
    """Which scores are better, "high" or "low"."""
    unit: str
    """What a score is, in a few words."""
    batch_size: int
    seconds: float

    @property
    def experiment(self) -> str:
        """Model and measure, as text that is the same for the same."""
        return json.dumps(_experiment(self), sort_keys=True)


def stated_by(settings: Mapping[str, Any], measured: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a `MeasuredRow`, from what is kept of a cell.

    Raises `KeyError`, `TypeError` or `ValueError` for what is none.
    """
    return {
        "model": str(settings["model"]["name"]),
        "task": str(settings["measure"]["task"]),
        "settings": settings,
        "outcome": Outcome.read(measured),
        **{name: measured[name] for name in ("better", "unit", "batch_size", "seconds")},
    }


def same_examples(one: MeasuredRow, other: MeasuredRow) -> bool:
    """Whether two rows are of the same model and the same measure."""
    return _experiment(one) == _experiment(other)


def _experiment(row: MeasuredRow) -> dict[str, Any]:
    return {name: row.settings[name] for name in ("model", "measure")}
