"""What every measure of a language model is, and what can be said of one by name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sinkscope.decoding.protocols import MaskingStats
from sinkscope.errors import UserError
from sinkscope.evaluation.cache_stats import Meter, peak_memory, watched_for
from sinkscope.evaluation.conditions import KeysCondition
from sinkscope.evaluation.eviction_points import EVICTION_POINTS, point_for
from sinkscope.evaluation.inputs import Examples
from sinkscope.families import Model
from sinkscope.grids import Cell, Measured, Outcome, Work
from sinkscope.grids.cell import number_in, whole_in
from sinkscope.grids.run import stated_model

WINDOW = 1000
"""Tokens of a window of a text, if nobody says otherwise."""


@dataclass(frozen=True, kw_only=True)
class BlockCaching:
    """How a diffusion model's answers are cached where keys are to be dropped. length: of a block; None leaves it to
    the task."""

    cache: str = "dual"
    length: int | None = None


@dataclass(frozen=True, kw_only=True)
class MeasureOptions:
    """What is measured on, and how.

    cached: whether caches are looked at, and keys may be dropped from them. when: an eviction point then, None for the
    model's own. blocks: of a diffusion model's answers then. window: tokens of a window of a text. lengths, depths: of
    the needle's haystacks.
    """

    examples: Examples = field(default_factory=Examples)
    cached: bool = False
    when: str | None = None
    blocks: BlockCaching = field(default_factory=BlockCaching)
    window: int = WINDOW
    lengths: Sequence[int] | None = None
    depths: Sequence[float] | None = None

    def __post_init__(self) -> None:
        if self.when is not None and self.when not in EVICTION_POINTS:
            raise UserError(f"--when must be one of {', '.join(EVICTION_POINTS)}, got {self.when!r}")

    def point(self, model: Model, points: Sequence[str]) -> str | None:
        """The eviction point of a model for a measure that has these; None where caches are not looked at.

        Raises `UserError` where the model or the measure has none.
        """
        return point_for(model, self.when, points).name if self.cached else None


@dataclass(frozen=True, kw_only=True)
class KeysMeasure(ABC):
    """A measure of a language model under conditions on its keys. Implements `grids.Measure`.

    point: the eviction point that it was laid out for; None where caches are not looked at.
    """

    model: Model
    point: str | None
    batch_size: int
    notes: tuple[str, ...] = ()

    @property
    @abstractmethod
    def task(self) -> str:
        """Its name."""

    @property
    @abstractmethod
    def n(self) -> int:
        """Number of examples."""

    @property
    @abstractmethod
    def better(self) -> str:
        """Which scores are better, "high" or "low"."""

    @property
    @abstractmethod
    def unit(self) -> str:
        """What a score is, in a few words."""

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Everything that decides the numbers, apart from model and condition, as JSON."""

    @abstractmethod
    def check(self, condition: KeysCondition) -> None:
        """Raise `UserError` where this can't be measured under that condition."""

    @abstractmethod
    def score(
        self, condition: KeysCondition, meter: Meter, observer: Callable[[int], None]
    ) -> tuple[Outcome, MaskingStats | None]:
        """Measure. The meter looks at caches where the condition has a point."""

    def run(self, condition: KeysCondition, observer: Callable[[int], None]) -> Measured:
        """Measure, and say what was masked and what caches held meanwhile."""
        meter = Meter()
        with watched_for(self.model, condition.compression), peak_memory(self.model.device) as peak:
            outcome, removed = self.score(condition, meter, observer)
        stats: dict[str, Any] = {"removed": None if removed is None else removed.to_dict()}
        if condition.point is not None:
            stats |= {**vars(meter.stats()), "peak_memory": peak.nbytes}
        return Measured(outcome, stats)


MakeMeasure = Callable[[Model], KeysMeasure]
"""Checks and lays out a measure for a model. Raises `UserError` where the model can't be measured so."""


def grid_work(
    measures: Sequence[KeysMeasure], conditions: Callable[[KeysMeasure], Sequence[KeysCondition]]
) -> list[Work[KeysCondition]]:
    """Every measure under its conditions, each model stated once."""
    stated: dict[int, dict[str, Any]] = {}
    for one in measures:
        if id(one.model) not in stated:
            stated[id(one.model)] = stated_model(one.model)
    return [Work(stated[id(one.model)], one, conditions(one)) for one in measures]


def removal_of(stats: Mapping[str, Any]) -> dict[str, float | None] | None:
    """What was masked, from a cell's stats."""
    found: dict[str, float | None] | None = stats["removed"]
    return found


def check_cell(cell: Cell[KeysCondition]) -> None:
    """Raise `KeyError`, `TypeError` or `ValueError` for a cell that no `KeysMeasure` gives."""
    removed, stats = removal_of(cell.stats), cell.stats
    if removed is not None:
        for name in {"keys", "mass", "sink_mass", "cut_mass", *removed}:
            if removed[name] is not None:
                number_in(removed, name)
    if not isinstance(cell.measure.get("decoding", {}), dict):
        raise ValueError("decoding has no settings")
    if cell.condition.point is not None:
        number_in(stats, "kept", most=1)
        if stats.get("sinks") is not None:
            number_in(stats, "sinks", most=1)
        for name in ("passes", "computed"):
            if stats.get(name) is not None:
                number_in(stats, name)
        number_in(stats, "cache_bytes")
        whole_in(stats, "tokens")
        if stats["peak_memory"] is not None:
            whole_in(stats, "peak_memory")
