"""Cells on patches put together: the draws of one model, and all models of one comparison.

A point is one way to choose at one share over one link. Its score is the mean over draws and models, each of which saw
the same pictures. Of several models, how they spread is told beside it: Student's interval for their mean, from three
on. It says how another training would come out, where intervals over pictures say how other pictures would.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isnan, lcm
from statistics import fmean

from sinkscope.experiments.pictures import PatchCondition
from sinkscope.grids.cell import Cell
from sinkscope.grids.outcome import Outcome, pool
from sinkscope.intervals import student_interval

PatchCell = Cell[PatchCondition]


@dataclass(frozen=True)
class Spread:
    """Of one number a model."""

    mean: float
    lowest: float
    highest: float
    interval: tuple[float, float] | None
    """None for fewer than three models, and for models that agree"""

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of at least one number."""
        low, high = student_interval(values)
        return cls(fmean(values), min(values), max(values), None if isnan(low) else (low, high))


@dataclass(frozen=True, eq=False, kw_only=True)
class Point:
    """At least one cell of the same way, share and link on the same pictures."""

    cells: tuple[PatchCell, ...]

    @property
    def condition(self) -> PatchCondition:
        """What all of them share, and the first one's seed."""
        return self.cells[0].condition

    @property
    def task(self) -> str:
        """Of all of them."""
        return self.cells[0].task

    @property
    def models(self) -> tuple[str, ...]:
        """What the models are known by, each once, sorted."""
        return tuple(sorted(self.by_model))

    @property
    def name(self) -> str:
        """Of the model, or how many there are."""
        return self.cells[0].model if len(self.models) == 1 else f"all {len(self.models)} models"

    @property
    def draws(self) -> int:
        """Of every model, at least."""
        return min(map(len, self.by_model.values()))

    @cached_property
    def by_model(self) -> dict[str, list[PatchCell]]:
        """The draws of every model."""
        found: dict[str, list[PatchCell]] = {}
        for cell in self.cells:
            found.setdefault(cell.experiment, []).append(cell)
        return found

    @cached_property
    def outcomes(self) -> list[Outcome]:
        """Of all cells; those of a model with fewer draws again and again, so that every model counts alike."""
        most = lcm(*map(len, self.by_model.values()))
        return [cell.outcome for cells in self.by_model.values() for cell in cells * (most // len(cells))]

    @cached_property
    def outcome(self) -> Outcome:
        """Of everything, picture by picture."""
        pooled = pool(self.outcomes)
        assert pooled is not None
        return pooled

    @property
    def scores(self) -> dict[str, float]:
        """Of every model, its draws averaged."""
        return {model: fmean(cell.outcome.score for cell in cells) for model, cells in self.by_model.items()}

    def stat(self, name: str) -> float | None:
        """What was measured beside the scores, mean over the cells; the largest share is the largest of them all."""
        found = [cell.stats[name] for cell in self.cells]
        if None in found:
            return None
        return max(found) if name == "most" else fmean(found)


def points(cells: Sequence[PatchCell]) -> list[Point]:
    """The points of every model, model by model, and then those of all models that saw the same pictures."""
    own = _sorted(cells, lambda cell: cell.experiment)
    common = _sorted(cells, lambda cell: json.dumps(cell.measure, sort_keys=True))
    return [*own, *(point for point in common if len(point.models) > 1)]


def widest(found: Sequence[Point]) -> list[Point]:
    """Those of all models where there are several, and each model's own where it stands alone."""
    together = [point for point in found if len(point.models) > 1]
    covered = {(point.condition.label, point.condition.place, model) for point in together for model in point.models}
    alone = [point for point in found if (point.condition.label, point.condition.place, point.models[0]) not in covered]
    return [*(point for point in alone if len(point.models) == 1), *together]


def _sorted(cells: Sequence[PatchCell], key: Callable[[PatchCell], str]) -> list[Point]:
    """One point a way, share and link, by a key; in the order of the cells, key by key."""
    found: dict[str, dict[object, list[PatchCell]]] = {}
    for cell in cells:
        found.setdefault(key(cell), {}).setdefault((cell.condition.label, cell.condition.place), []).append(cell)
    return [Point(cells=tuple(some)) for of_key in found.values() for some in of_key.values()]
