"""Run a grid: models x tasks x keys x (sinks and controls), one cell after the other, each kept as it ends.

    rows = ablate({"twin-ar": [measure]}, Grid(keys=(0, 1, 5)))

All cells are checked before the first is run. Costs one evaluation a cell; plain runs and cells that are there already
are not run twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from sinkscope.evaluation.ablation.base import Measure, Removal
from sinkscope.evaluation.ablation.grid import Cell, Grid
from sinkscope.evaluation.ablation.outcomes import Outcome
from sinkscope.evaluation.ablation.store import CellStore, open_cells
from sinkscope.evaluation.memory import memory_advice
from sinkscope.families import Model


@dataclass(frozen=True, kw_only=True)
class Row:
    """One finished cell."""

    model: str
    task: str
    better: str
    """Which scores are better, "high" or "low"."""
    cell: Cell
    outcome: Outcome
    removed: Removal | None
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Where a grid stands; given to the observer after every batch."""

    cells_done: int
    cells: int
    row: str
    examples_done: int
    examples: int


Observer = Callable[[Progress], None]


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
    that are done are kept.
    """
    cells = grid.cells()
    for _, measure in measures:
        for cell in cells:
            if cell.intervention is not None:
                measure.check(cell.intervention)
    rows: list[Row] = []
    with open_cells(out, resume=resume) as store:
        for model, measure in measures:
            for cell in cells:
                tell = _teller(observer, len(rows), len(measures) * len(cells), model, measure, cell)
                rows.append(_row(store, model, measure, cell, tell))
    return rows


def _teller(
    observer: Observer | None, done: int, cells: int, model: Model, measure: Measure, cell: Cell
) -> Callable[[int], None]:
    name = f"{model.name} {measure.task} {cell.keys} {cell.masked}"

    def tell(examples: int) -> None:
        if observer is not None:
            observer(Progress(cells_done=done, cells=cells, row=name, examples_done=examples, examples=measure.n))

    return tell


def _row(store: CellStore, model: Model, measure: Measure, cell: Cell, tell: Callable[[int], None]) -> Row:
    settings = _settings(model, measure, cell)
    measured = store.find(settings)
    if measured is None:
        measured = _measure(measure, cell, tell)
        store.add(settings, measured)
    tell(measure.n)
    outcome = Outcome(np.array(measured["numerators"]), np.array(measured["denominators"]), measured["exact"])
    return Row(
        model=model.name,
        task=measure.task,
        better=measure.better,
        cell=cell,
        outcome=outcome,
        removed=measured["removed"],
        seconds=measured["seconds"],
    )


def _measure(measure: Measure, cell: Cell, tell: Callable[[int], None]) -> dict[str, Any]:
    start = time.perf_counter()
    with memory_advice(_advice(measure)):
        outcome, removed = measure.run(cell.intervention, tell)
    return {
        "numerators": outcome.numerators.tolist(),
        "denominators": outcome.denominators.tolist(),
        "exact": outcome.exact,
        "removed": removed,
        "seconds": time.perf_counter() - start,
    }


def _advice(measure: Measure) -> str:
    size = measure.settings()["batch_size"]
    smaller = f"use batch size {size // 2}" if size > 1 else "use shorter texts or another device"
    return f"memory ran out at {measure.task} with batch size {size}: {smaller}, and resume; finished cells are kept"


def _settings(model: Model, measure: Measure, cell: Cell) -> dict[str, Any]:
    """Everything that decides a cell's numbers."""
    return {
        "model": {
            "name": model.name,
            "revision": model.revision,
            "dtype": str(model.dtype),
            "device": model.device.type,
        },
        "measure": measure.settings(),
        "intervention": None if cell.intervention is None else cell.intervention.to_dict(),
        "versions": {name: version(name) for name in ("sinkscope", "torch", "transformers")},
    }
