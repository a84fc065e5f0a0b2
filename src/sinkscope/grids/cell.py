"""What a grid is made of: conditions, measures, and cells, each a measure that was run under a condition."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import isfinite
from typing import Any, Generic, Protocol, TypeVar

from sinkscope.errors import UserError
from sinkscope.grids.outcome import Outcome
from sinkscope.versions import PACKAGES, deciding

_DIGEST = 12
_LARGEST = 1e18
"""Of what is measured: times, bytes, tokens."""
_SHORTEST = 1e-12
"""Seconds."""


class Condition(Protocol):
    """What is done to a model while it works."""

    @property
    def name(self) -> str:
        """In a few words, for messages."""

    @property
    def packages(self) -> Mapping[str, str]:
        """Versions of packages that decide its numbers, beside those that decide all."""

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON. What is drawn at random has a `seed` somewhere in it."""


C = TypeVar("C", bound=Condition)
C_contra = TypeVar("C_contra", bound=Condition, contravariant=True)


@dataclass(frozen=True)
class Measured:
    """What came out of a run: a score, and what was measured beside it, as JSON."""

    outcome: Outcome
    stats: dict[str, Any] = field(default_factory=dict)


class Measure(Protocol[C_contra]):
    """Something that gives one number an example under any condition; checked and laid out once a model."""

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
        """Everything that decides the numbers, apart from the model and the condition, as JSON."""

    def check(self, condition: C_contra) -> None:
        """Raise `UserError` where this can't be measured under that condition."""

    def run(self, condition: C_contra, observer: Callable[[int], None]) -> Measured:
        """Measure. observer: called with the number of examples done."""


def check_cell(model: str, measure: Measure[C], condition: C) -> None:
    """Raise `UserError`, with the cell's name, where it can't be run."""
    try:
        measure.check(condition)
    except UserError as error:
        raise UserError(f"{model}, {measure.task}, {condition.name}: {error}") from error


def run_cell(name: str, measure: Measure[C], condition: C, observer: Callable[[int], None]) -> dict[str, Any]:
    """All that is kept of a cell beside its settings, as JSON. Raises `UserError` for scores that are no numbers."""
    start = time.perf_counter()
    found = measure.run(condition, observer)
    kept = found.outcome.to_dict()
    wrong = [value for sums in ("numerators", "denominators") for value in kept[sums] if not isfinite(value)]
    if wrong:
        raise UserError(
            f"{name}: the scores of {len(wrong)} of {measure.n} examples are {wrong[0]}, no number; compute in a wider "
            "dtype, float32 for example"
        )
    return {
        **kept,
        "stats": found.stats,
        "better": measure.better,
        "unit": measure.unit,
        "batch_size": measure.batch_size,
        "seconds": time.perf_counter() - start,
    }


@dataclass(frozen=True, kw_only=True)
class Cell(Generic[C]):
    """One finished cell of a grid."""

    model: str
    task: str
    condition: C
    draw: int = 0
    """Number of the draw, from 0, among cells that differ by their seeds alone."""
    settings: Mapping[str, Any]
    """Everything that decided its numbers: model, measure, condition, versions."""
    outcome: Outcome
    stats: Mapping[str, Any]
    """What was measured beside the score."""
    better: str
    unit: str
    batch_size: int
    seconds: float

    @cached_property
    def experiment(self) -> str:
        """Model, measure and versions of what measured, as text that is the same for the same."""
        versions = deciding(self.settings.get("versions", {}))
        told = {name: self.settings[name] for name in ("model", "measure")}
        return json.dumps({**told, "versions": {name: versions[name] for name in PACKAGES}}, sort_keys=True)

    @property
    def experiment_digest(self) -> str:
        """The same in a few characters."""
        return hashlib.sha256(self.experiment.encode()).hexdigest()[:_DIGEST]

    @property
    def measure(self) -> Mapping[str, Any]:
        """The measure's settings."""
        found: Mapping[str, Any] = self.settings["measure"]
        return found


def cell_of(condition: C, settings: Mapping[str, Any], measured: Mapping[str, Any]) -> Cell[C]:
    """A cell from what is kept of it. Raises `KeyError`, `TypeError` or `ValueError` for what is none."""
    if measured["better"] not in ("high", "low"):
        raise ValueError("scores are better high or low")
    versions = settings.get("versions", {})
    if not isinstance(versions, dict):
        raise ValueError("versions have names")
    for name in versions:
        text_in(versions, name)
    stats = measured["stats"]
    if not isinstance(stats, dict):
        raise ValueError("stats have names")
    _check_stats(stats)
    return Cell(
        model=text_in(settings["model"], "name"),
        task=text_in(settings["measure"], "task"),
        condition=condition,
        settings=settings,
        outcome=Outcome.read(measured),
        stats=stats,
        better=measured["better"],
        unit=text_in(measured, "unit"),
        batch_size=whole_in(measured, "batch_size", least=1),
        seconds=number_in(measured, "seconds", least=_SHORTEST),
    )


def without_seeds(settings: Any) -> tuple[Any, list[Any]]:
    """Settings, as JSON, without any `seed` in them; and those seeds, in order."""
    if isinstance(settings, dict):
        rest = {name: without_seeds(value) for name, value in settings.items() if name != "seed"}
        own = [settings["seed"]] if "seed" in settings else []
        return {name: inner for name, (inner, _) in rest.items()}, own + [
            s for _, seeds in rest.values() for s in seeds
        ]
    return settings, []


def numbered(cells: Sequence[Cell[C]]) -> list[Cell[C]]:
    """The cells, each with the number of its draw."""
    named = []
    for cell in cells:
        rest, seeds = without_seeds(cell.settings["condition"])
        named.append(
            (json.dumps([cell.experiment, rest], sort_keys=True), [-1 if seed is None else seed for seed in seeds])
        )
    drawn: dict[str, list[list[int]]] = {}
    for name, seeds in named:
        there = drawn.setdefault(name, [])
        if seeds not in there:
            there.append(seeds)
    return [
        replace(cell, draw=sorted(drawn[name]).index(seeds)) for cell, (name, seeds) in zip(cells, named, strict=True)
    ]


def _check_stats(stats: Mapping[str, Any]) -> None:
    """Raise `ValueError` for what is neither a finite number of at least 0, nor none, nor a table of such."""
    for name, value in stats.items():
        if isinstance(value, dict):
            _check_stats(value)
        elif value is not None:
            number_in(stats, name)


def text_in(kept: Mapping[str, Any], name: str) -> str:
    """The text of this name. Raises `KeyError`, `TypeError` or `ValueError` for what is none."""
    if not isinstance(kept[name], str):
        raise ValueError(f"{name} is no text")
    return str(kept[name])


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
