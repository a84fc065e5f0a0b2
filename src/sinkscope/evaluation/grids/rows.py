"""What every finished cell of a grid states, whatever the grid varies."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sinkscope.evaluation.grids.outcomes import Outcome
from sinkscope.versions import PACKAGES, deciding

_DIGEST = 12
_LARGEST = 1e18
"""Of what is measured: times, bytes, tokens."""
_SHORTEST = 1e-12
"""Seconds."""


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
        """Model, measure and versions of what measured, as text that is the same for the same."""
        return json.dumps(_experiment(self), sort_keys=True)

    @property
    def experiment_digest(self) -> str:
        """The same in a few characters."""
        return hashlib.sha256(self.experiment.encode()).hexdigest()[:_DIGEST]


def stated_by(settings: Mapping[str, Any], measured: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a `MeasuredRow`, from what is kept of a cell.

    Raises `KeyError`, `TypeError` or `ValueError` for what is none.
    """
    if measured["better"] not in ("high", "low"):
        raise ValueError("scores are better high or low")
    versions = settings.get("versions", {})
    if not isinstance(versions, dict):
        raise ValueError("versions have names")
    for name in versions:
        text_in(versions, name)
    return {
        "model": text_in(settings["model"], "name"),
        "task": text_in(settings["measure"], "task"),
        "settings": settings,
        "outcome": Outcome.read(measured),
        "better": measured["better"],
        "unit": text_in(measured, "unit"),
        "batch_size": whole_in(measured, "batch_size", least=1),
        "seconds": number_in(measured, "seconds", least=_SHORTEST),
    }


def text_in(kept: Mapping[str, Any], name: str) -> str:
    """The text of this name. Raises `KeyError`, `TypeError` or `ValueError` for what is none."""
    if not isinstance(kept[name], str):
        raise ValueError(f"{name} is no text")
    return str(kept[name])


def seed_in(kept: Mapping[str, Any]) -> int:
    """The seed. Raises `KeyError`, `TypeError` or `ValueError` for what is none."""
    if not isinstance(kept["seed"], int):
        raise ValueError("the seed is no whole number")
    return kept["seed"]


def whole_in(kept: Mapping[str, Any], name: str, least: int = 0) -> int:
    """The whole number of this name. Raises `KeyError`, `TypeError` or `ValueError` for what is none."""
    if not isinstance(kept[name], int):
        raise ValueError(f"{name} is no whole number")
    return int(number_in(kept, name, least))


def number_in(kept: Mapping[str, Any], name: str, least: float = 0.0, most: float = _LARGEST) -> float:
    """The finite number of this name. Raises `KeyError`, `TypeError` or `ValueError` for what is none."""
    value = kept[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise ValueError(f"{name} is no number from {least:g} to {most:g}")
    return value


def same_examples(one: MeasuredRow, other: MeasuredRow) -> bool:
    """Whether two rows are of the same model and the same measure, and measured by the same versions."""
    return _experiment(one) == _experiment(other)


def _experiment(row: MeasuredRow) -> dict[str, Any]:
    versions = deciding(row.settings.get("versions", {}))
    return {
        **{name: row.settings[name] for name in ("model", "measure")},
        "versions": {name: versions[name] for name in PACKAGES},
    }
