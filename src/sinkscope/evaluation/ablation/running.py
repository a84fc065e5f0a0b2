"""Run a grid: models x tasks x keys x (sinks and controls), one cell after the other, each kept as it ends.

    rows = ablate([(model, measure)], Grid(keys=(0, 1, 5)))

All cells are checked before the first is run. Costs one evaluation a cell; plain runs and cells that are there already
are not run twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sinkscope.errors import UserError
from sinkscope.evaluation.ablation.base import Measure
from sinkscope.evaluation.ablation.grid import Cell, Grid
from sinkscope.evaluation.ablation.reading import FORM
from sinkscope.evaluation.ablation.rows import Row, row_of
from sinkscope.evaluation.grids.progress import Observer
from sinkscope.evaluation.grids.running import Job, run_jobs, stated, stated_model
from sinkscope.families import Model


def ablate(
    measures: Sequence[tuple[Model, Measure]],
    grid: Grid,
    *,
    out: Path | None = None,
    resume: bool = False,
    other_versions: bool = False,
    observer: Observer | None = None,
) -> list[Row]:
    """Every cell of the grid for every model and measure, in their order.

    out: folder that keeps the cells; with `resume` it may hold some already, with
        `other_versions` those of any version of the packages too.
    Raises `UserError` before any work for a cell that can't be run; and where memory runs out, with what to do: cells
    that are done are kept in `out`, at any batch size.
    """
    cells = grid.cells()
    for model, measure in measures:
        for cell in cells:
            _check(model, measure, cell)
    told = [(stated_model(model), measure) for model, measure in measures]
    jobs = [_job(model, measure, cell) for model, measure in told for cell in cells]
    found = run_jobs(jobs, FORM, out=out, resume=resume, other_versions=other_versions, observer=observer)
    every = [cell for _ in measures for cell in cells]
    return [row_of(cell, job.settings, measured) for cell, job, measured in zip(every, jobs, found, strict=True)]


def _check(model: Model, measure: Measure, cell: Cell) -> None:
    if cell.intervention is None:
        return
    try:
        measure.check(cell.intervention)
    except UserError as error:
        raise UserError(f"{model.name}, {measure.task}, {cell.keys}: {error}") from error


def _job(model: dict[str, Any], measure: Measure, cell: Cell) -> Job:
    def run(tell: Callable[[int], None]) -> dict[str, Any]:
        outcome, removed = measure.run(cell.intervention, tell)
        return {**outcome.to_dict(), "better": measure.better, "unit": measure.unit, "removed": removed}

    intervention = None if cell.intervention is None else cell.intervention.to_dict()
    return Job(
        name=f"{model['name']} {measure.task} {cell.keys} {cell.masked}",
        task=measure.task,
        settings=stated(model, measure.settings(), intervention=intervention),
        n=measure.n,
        batch_size=measure.batch_size,
        run=run,
    )
