"""Run a grid: models x tasks x scorers x shares of keys, one cell after the other, each kept as it ends.

    rows = measure_compression([(model, measure)], Grid(scorers=("key-norm", "random")))

All cells are checked before the first is run. Costs one evaluation a cell; the run with all keys and cells that are
there already are not run twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sinkscope.errors import UserError
from sinkscope.evaluation.compressed.base import Measure
from sinkscope.evaluation.compressed.grid import Cell, Grid
from sinkscope.evaluation.compressed.reading import FORM
from sinkscope.evaluation.compressed.rows import Row, row_of
from sinkscope.evaluation.grids.progress import Observer
from sinkscope.evaluation.grids.running import Job, run_jobs, stated, stated_model
from sinkscope.evaluation.peak import peak_memory
from sinkscope.families import Model


def measure_compression(
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
    every = [(model, measure, grid.cells_for(measure.when)) for model, measure in measures]
    for model, measure, some in every:
        for cell in some:
            _check(model, measure, cell)
    jobs = [job for model, measure, some in every for job in _jobs(model, measure, some)]
    found = run_jobs(jobs, FORM, out=out, resume=resume, other_versions=other_versions, observer=observer)
    cells = [cell for _, _, some in every for cell in some]
    return [row_of(cell, job.settings, measured) for cell, job, measured in zip(cells, jobs, found, strict=True)]


def _check(model: Model, measure: Measure, cell: Cell) -> None:
    if cell.compress is None:
        return
    try:
        measure.check(cell.compress)
    except UserError as error:
        raise UserError(f"{model.name}, {measure.task}, {cell.label} at {cell.kept}: {error}") from error


def _jobs(model: Model, measure: Measure, cells: Sequence[Cell]) -> list[Job]:
    told = stated_model(model)
    return [_job(model, told, measure, cell) for cell in cells]


def _job(model: Model, told: dict[str, Any], measure: Measure, cell: Cell) -> Job:
    def run(tell: Callable[[int], None]) -> dict[str, Any]:
        with peak_memory(model.device) as peak:
            outcome, weighed = measure.run(cell.compress, tell)
        stated_by = {"better": measure.better, "unit": measure.unit, "peak_memory": peak.nbytes}
        return {**outcome.to_dict(), **vars(weighed), **stated_by}

    return Job(
        name=f"{model.name} {measure.task} {cell.label} {cell.kept}",
        task=measure.task,
        settings=stated(
            told, measure.settings(), compression=None if cell.compress is None else cell.compress.to_dict()
        ),
        n=measure.n,
        batch_size=measure.batch_size,
        run=run,
    )
