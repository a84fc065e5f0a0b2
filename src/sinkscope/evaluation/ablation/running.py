"""Run a grid: models x tasks x keys x (sinks and controls), one cell after the other, each kept as it ends.

    rows = ablate([(model, measure)], Grid(keys=(0, 1, 5)))

All cells are checked before the first is run. Costs one evaluation a cell; plain runs and cells that are there already
are not run twice.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from sinkscope.errors import UserError
from sinkscope.evaluation.ablation.base import Measure
from sinkscope.evaluation.ablation.grid import Cell, Grid
from sinkscope.evaluation.ablation.progress import Observer, Watch
from sinkscope.evaluation.ablation.rows import Row, row_of
from sinkscope.evaluation.ablation.store import CellStore, open_cells
from sinkscope.evaluation.memory import memory_advice
from sinkscope.families import Model

PACKAGES = ("sinkscope", "torch", "transformers")
"""Whose versions are kept with a cell."""


@dataclass(frozen=True, kw_only=True)
class _Job:
    """A cell for one model and measure."""

    measure: Measure
    cell: Cell
    name: str
    settings: dict[str, Any]


def ablate(
    measures: Sequence[tuple[Model, Measure]],
    grid: Grid,
    *,
    out: Path | None = None,
    resume: bool = False,
    observer: Observer | None = None,
) -> list[Row]:
    """Every cell of the grid for every model and measure, in their order.

    out: folder that keeps the cells; with `resume` it may hold some already.
    Raises `UserError` before any work for a cell that can't be run; and where memory runs out, with what to do: cells
    that are done are kept in `out`, at any batch size.
    """
    cells = grid.cells()
    for model, measure in measures:
        for cell in cells:
            _check(model, measure, cell)
    jobs = [job for model, measure in measures for job in _jobs(model, measure, cells)]
    with open_cells(out, resume=resume) as store:
        to_run = [job for job in jobs if store.find(job.settings) is None]
        watch = Watch(observer=observer, cells=len(jobs), examples=sum(job.measure.n for job in to_run))
        return [_row(store, job, watch, out) for job in jobs]


def _check(model: Model, measure: Measure, cell: Cell) -> None:
    if cell.intervention is None:
        return
    try:
        measure.check(cell.intervention)
    except UserError as error:
        raise UserError(f"{model.name}, {measure.task}, {cell.keys}: {error}") from error


def _jobs(model: Model, measure: Measure, cells: Sequence[Cell]) -> list[_Job]:
    shared = _shared_settings(model, measure)
    return [
        _Job(
            measure=measure,
            cell=cell,
            name=f"{model.name} {measure.task} {cell.keys} {cell.masked}",
            settings={**shared, "intervention": cell.intervention and _given_back(cell.intervention.to_dict())},
        )
        for cell in cells
    ]


def _row(store: CellStore, job: _Job, watch: Watch, out: Path | None) -> Row:
    watch.tell(job.name)
    measured = store.find(job.settings)
    if measured is not None:
        watch.end(job.name, 0)
        return row_of(job.cell, job.settings, measured)
    with memory_advice(_advice(job.measure, out)):
        measured = _measured(job.measure, job.cell, lambda done: watch.tell(job.name, done))
    store.add(job.settings, measured)
    watch.end(job.name, job.measure.n)
    return row_of(job.cell, job.settings, measured)


def _measured(measure: Measure, cell: Cell, tell: Callable[[int], None]) -> dict[str, Any]:
    start = time.perf_counter()
    outcome, removed = measure.run(cell.intervention, tell)
    return {
        "numerators": outcome.numerators.tolist(),
        "denominators": outcome.denominators.tolist(),
        "exact": outcome.exact,
        "better": measure.better,
        "unit": measure.unit,
        "removed": removed,
        "batch_size": measure.batch_size,
        "seconds": time.perf_counter() - start,
    }


def _advice(measure: Measure, out: Path | None) -> str:
    size = measure.batch_size
    smaller = f"use batch size {size // 2} (--batch-size)" if size > 1 else "use shorter texts or another device"
    kept = (
        f"and go on with the finished cells in {out} (--resume; in Python resume=True)"
        if out is not None
        else "and name a folder that keeps finished cells (--out); nothing was kept"
    )
    return f"memory ran out at {measure.task} with batch size {size}: {smaller}, {kept}"


def _shared_settings(model: Model, measure: Measure) -> dict[str, Any]:
    """Everything that decides the numbers of a measure's cells, but for the intervention; as JSON gives it back."""
    stated = {
        "model": {
            "name": model.name,
            "revision": model.revision,
            "dtype": str(model.dtype),
            "device": model.device.type,
        },
        "measure": measure.settings(),
        "versions": {name: version(name) for name in PACKAGES},
    }
    return _given_back(stated)


def _given_back(stated: dict[str, Any]) -> dict[str, Any]:
    """As JSON gives it back, so that cells that are read are equal to cells that were run."""
    kept: dict[str, Any] = json.loads(json.dumps(stated))
    return kept
