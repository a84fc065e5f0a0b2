"""Run the cells of a grid one after the other, each kept as it ends; those that are there already are not run again.

    run_grid([Work(model, measure, conditions)], form, Keeping(out=folder))

All cells are checked before the first is run. The time left follows from the examples that were run so far, all cells
alike: cells that score a layer twice or carry a clean copy take longer than it says.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any, Generic

from sinkscope.errors import UserError, memory_advice
from sinkscope.families import Model
from sinkscope.families.describe import identity_of
from sinkscope.grids.cell import C, Cell, Measure, numbered
from sinkscope.grids.store import CellStore, Form, open_cells
from sinkscope.versions import versions_now


@dataclass(frozen=True, kw_only=True)
class GridProgress:
    """Where a grid stands: told at its start, after every batch and at its end."""

    cells_done: int
    cells: int
    cell: str
    """The one that is run: model, task, condition."""
    examples_done: int
    """In all cells that had to be run."""
    examples: int
    """In all cells that have to be run; those taken over do not count."""
    seconds_left: float | None
    """None before the first batch has ended."""


Observer = Callable[[GridProgress], None]


@dataclass(frozen=True, kw_only=True)
class Keeping:
    """Where finished cells are kept, and whether those there are taken over.

    out: folder; None keeps them in memory. resume: it may hold some already. other_versions: those of any version of
    the packages too.
    """

    out: Path | None = None
    resume: bool = False
    other_versions: bool = False


@dataclass(frozen=True)
class Work(Generic[C]):
    """What is to be measured of one model: one measure under several conditions.

    model: everything about it that decides numbers, as JSON (`stated_model`).
    """

    model: Mapping[str, Any]
    measure: Measure[C]
    conditions: Sequence[C]


def run_grid(
    work: Sequence[Work[C]], form: Form[C], keeping: Keeping | None = None, observer: Observer | None = None
) -> list[Cell[C]]:
    """Every cell, in the order of the work.

    Raises `UserError` before any work for a cell that can't be run, and for a folder that is none or another's; for
    scores that are no numbers; and where memory runs out, with what to do: cells that are done are kept, at any batch
    size.
    """
    keeping = keeping or Keeping()
    for one in work:
        for condition in one.conditions:
            _check(one, condition)
    jobs = [_Job(form, one, condition) for one in work for condition in one.conditions]
    with open_cells(keeping.out, form, resume=keeping.resume, other_versions=keeping.other_versions) as store:
        to_run = [job for job in jobs if store.find(job.settings) is None]
        watch = _Watch(observer=observer, cells=len(jobs), examples=sum(job.measure.n for job in to_run))
        found = [_measured(store, job, watch, keeping.out) for job in jobs]
    return numbered([form.cell(job.settings, measured) for job, measured in zip(jobs, found, strict=True)])


def stated_model(model: Model) -> dict[str, Any]:
    """Everything about a model that decides numbers, as JSON: its weights by a digest of a sample of them, which takes
    milliseconds, so call it once a model."""
    return {
        "name": model.name,
        "revision": model.revision,
        "weights": identity_of(model).weights,
        "dtype": str(model.dtype),
        "device": model.device.type,
    }


def _check(work: Work[C], condition: C) -> None:
    try:
        work.measure.check(condition)
    except UserError as error:
        raise UserError(f"{work.model['name']}, {work.measure.task}, {condition.name}: {error}") from error


class _Job(Generic[C]):
    """One cell. settings: everything that decides its numbers, as JSON gives it back, so that cells that are read are
    equal to cells that were run."""

    def __init__(self, form: Form[C], work: Work[C], condition: C) -> None:
        self.measure, self.condition = work.measure, condition
        self.name = f"{work.model['name']} {work.measure.task} {condition.name}"
        self.settings: dict[str, Any] = json.loads(
            json.dumps(
                {
                    "grid": form.kind,
                    "model": dict(work.model),
                    "measure": work.measure.settings(),
                    "versions": {**versions_now(), **condition.packages},
                    "condition": condition.to_dict(),
                }
            )
        )


def _measured(store: CellStore[C], job: _Job[C], watch: _Watch, out: Path | None) -> dict[str, Any]:
    measure = job.measure
    watch.tell(job.name)
    measured = store.find(job.settings)
    if measured is not None:
        watch.end(job.name, 0)
        return measured
    start = time.perf_counter()
    with memory_advice(_advice(measure.task, measure.batch_size, out)):
        found = measure.run(job.condition, lambda done: watch.tell(job.name, done))
    _check_finite(job, found.outcome.to_dict())
    measured = {
        **found.outcome.to_dict(),
        "stats": found.stats,
        "better": measure.better,
        "unit": measure.unit,
        "batch_size": measure.batch_size,
        "seconds": time.perf_counter() - start,
    }
    store.add(job.settings, measured)
    watch.end(job.name, measure.n)
    return measured


def _advice(task: str, size: int, out: Path | None) -> str:
    smaller = f"use batch size {size // 2} (--batch-size)" if size > 1 else "use shorter texts or another device"
    kept = (
        f"and go on with the finished cells in {out} (--resume; in Python resume=True)"
        if out is not None
        else "and name a folder that keeps finished cells (--out); nothing was kept"
    )
    return f"memory ran out at {task} with batch size {size}: {smaller}, {kept}"


def _check_finite(job: _Job[C], found: Mapping[str, Any]) -> None:
    wrong = [value for name in ("numerators", "denominators") for value in found[name] if not isfinite(value)]
    if wrong:
        raise UserError(
            f"{job.name}: the scores of {len(wrong)} of {job.measure.n} examples are {wrong[0]}, no number; compute in "
            "a wider dtype, float32 for example"
        )


@dataclass(kw_only=True)
class _Watch:
    """Counts cells and examples for an observer."""

    observer: Observer | None
    cells: int
    examples: int
    start: float = field(default_factory=time.perf_counter)
    cells_done: int = 0
    examples_before: int = 0
    """Of the cells that were run."""

    def tell(self, cell: str, done: int = 0) -> None:
        """So many examples of this cell are done."""
        if self.observer is None:
            return
        examples = self.examples_before + done
        elapsed = time.perf_counter() - self.start
        left = elapsed / examples * (self.examples - examples) if examples else None
        self.observer(
            GridProgress(
                cells_done=self.cells_done,
                cells=self.cells,
                cell=cell,
                examples_done=examples,
                examples=self.examples,
                seconds_left=left,
            )
        )

    def end(self, cell: str, examples: int) -> None:
        """A cell has ended, of which so many examples were run."""
        self.cells_done += 1
        self.examples_before += examples
        self.tell(cell)
