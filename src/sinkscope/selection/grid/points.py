"""Cells put together: the draws of one model, and all models of one comparison.

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

from sinkscope.evaluation.grids import Outcome, pool
from sinkscope.intervals import student_interval
from sinkscope.selection.grid.cells import Cell
from sinkscope.selection.grid.rows import Row


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
    """At least one row of the same way, share and link on the same pictures."""

    rows: tuple[Row, ...]

    @property
    def cell(self) -> Cell:
        """What all of them share, and the first one's seed."""
        return self.rows[0].cell

    @property
    def models(self) -> tuple[str, ...]:
        """What the models are known by, each once, sorted."""
        return tuple(sorted(self.by_model))

    @property
    def name(self) -> str:
        """Of the model, or how many there are."""
        return self.rows[0].model if len(self.models) == 1 else f"all {len(self.models)} models"

    @property
    def experiment(self) -> str:
        """Digests of models and pictures, the same for the same."""
        return " ".join(self.by_model[model][0].experiment_digest for model in self.models)

    @property
    def draws(self) -> int:
        """Of every model, at least."""
        return min(map(len, self.by_model.values()))

    @cached_property
    def by_model(self) -> dict[str, list[Row]]:
        """The draws of every model."""
        found: dict[str, list[Row]] = {}
        for row in self.rows:
            found.setdefault(row.experiment, []).append(row)
        return found

    @cached_property
    def outcome(self) -> Outcome:
        """Of everything, picture by picture."""
        pooled = pool(weighed_alike(self))
        assert pooled is not None
        return pooled

    @property
    def scores(self) -> dict[str, float]:
        """Of every model, its draws averaged."""
        return {model: fmean(row.outcome.score for row in rows) for model, rows in self.by_model.items()}

    @property
    def spread(self) -> Spread | None:
        """Of the models' scores; None for one model."""
        return Spread.of(list(self.scores.values())) if len(self.models) > 1 else None

    def weighed(self, name: str) -> float | None:
        """A field of `Weighed`, mean over the rows; the largest share is the largest of them all."""
        found = [getattr(row.weighed, name) for row in self.rows]
        if None in found:
            return None
        return max(found) if name == "most" else fmean(found)


def weighed_alike(point: Point) -> list[Outcome]:
    """Of all its rows; those of a model with fewer draws again and again, so that every model counts alike."""
    most = lcm(*map(len, point.by_model.values()))
    return [row.outcome for rows in point.by_model.values() for row in rows * (most // len(rows))]


def points(rows: Sequence[Row]) -> list[Point]:
    """The points of every model, model by model, and then those of all models that saw the same pictures."""
    own, common = _sorted(rows, lambda row: row.experiment), _sorted(rows, _pictures)
    return [*own, *(point for point in common if len(point.models) > 1)]


def widest(found: Sequence[Point]) -> list[Point]:
    """Those of all models where there are several, and each model's own where it stands alone."""
    together = [point for point in found if len(point.models) > 1]
    covered = {(point.cell.label, point.cell.place, model) for point in together for model in point.models}
    alone = [point for point in found if (point.cell.label, point.cell.place, point.models[0]) not in covered]
    return [*(point for point in alone if len(point.models) == 1), *together]


def _sorted(rows: Sequence[Row], key: Callable[[Row], str]) -> list[Point]:
    """One point a way, share and link, by a key; in the order of the rows, key by key."""
    found: dict[str, dict[object, list[Row]]] = {}
    for row in rows:
        found.setdefault(key(row), {}).setdefault((row.cell.label, row.cell.place), []).append(row)
    return [Point(rows=tuple(some)) for of_key in found.values() for some in of_key.values()]


def _pictures(row: Row) -> str:
    return json.dumps(row.settings["measure"], sort_keys=True)
