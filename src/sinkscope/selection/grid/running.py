"""Run a comparison: models x ways to choose x shares x links x draws, each cell kept as it ends.

    measures = [measure_on(trained, load_images("fashion-mnist").test, split="test")]
    rows = compare_selectors(measures, Grid(selectors=("gates", "random")))

All cells are tried on one picture before the first is run. Costs one pass over the pictures a cell; cells that are
there already are not run twice. Noise is drawn batch by batch, so a noisy cell is that of its batch size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from sinkscope.evaluation.grids import Job, Observer, run_jobs
from sinkscope.evaluation.grids.running import stated
from sinkscope.selection.grid.cells import Cell, Grid
from sinkscope.selection.grid.measure import Measure
from sinkscope.selection.grid.reading import FORM
from sinkscope.selection.grid.rows import Row, row_of


def compare_selectors(
    measures: Sequence[Measure],
    grid: Grid,
    *,
    out: Path | None = None,
    resume: bool = False,
    other_versions: bool = False,
    observer: Observer | None = None,
) -> list[Row]:
    """Every cell of the grid for every model, in their order.

    out: folder that keeps the cells; with `resume` it may hold some already, with
        `other_versions` those of any version of the packages too. Raises `UserError` before any work for a
    cell that can't be run; and where memory runs out, with what to do: cells that are done are kept in `out`.
    """
    every = [(measure, cell) for measure in measures for cell in grid.cells_for(measure.trained.model.mode)]
    return run_cells(every, out=out, resume=resume, other_versions=other_versions, observer=observer)


def run_cells(
    every: Sequence[tuple[Measure, Cell]],
    *,
    out: Path | None,
    resume: bool,
    other_versions: bool,
    observer: Observer | None,
) -> list[Row]:
    """These cells, as `compare_selectors` runs them."""
    tried: dict[object, tuple[Measure, Cell]] = {}
    for measure, cell in every:  # one draw of each
        tried.setdefault((id(measure), cell.label, cell.place), (measure, cell))
    for measure, cell in tried.values():
        measure.check(cell)
    jobs = [_job(*one) for one in every]
    found = run_jobs(jobs, FORM, out=out, resume=resume, other_versions=other_versions, observer=observer)
    return [row_of(job.settings, measured) for job, measured in zip(jobs, found, strict=True)]


def _job(measure: Measure, cell: Cell) -> Job:
    def run(tell: Callable[[int], None]) -> dict[str, Any]:
        outcome, weighed = measure.run(cell, tell)
        return {**outcome.to_dict(), **vars(weighed), "better": measure.better, "unit": measure.unit}

    return Job(
        name=f"{measure.trained.name} {cell.label} {cell.where}",
        task=measure.task,
        settings=_stated(measure, cell),
        n=measure.n,
        batch_size=measure.batch_size,
        run=run,
    )


def _stated(measure: Measure, cell: Cell) -> dict[str, Any]:
    """Everything that decides a cell's numbers, as JSON gives it back."""
    noisy = cell.channel is not None and cell.seed is not None
    selection = {**cell.to_dict(), "noise_batch": measure.batch_size if noisy else None}
    settings = stated(measure.model, measure.settings(), selection=selection)
    return {**settings, "versions": settings["versions"] | _made_by(cell)}


def _made_by(cell: Cell) -> dict[str, str]:
    """The versions of what makes noise and files."""
    if cell.digital:
        return {"pillow": version("pillow")}
    # There are two packages that bring sionna.phy, so the module is asked and not the package.
    return {} if cell.channel is None else {"sionna": str(import_module("sionna").__version__)}
