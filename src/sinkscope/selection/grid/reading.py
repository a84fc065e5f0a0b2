"""Read the cells that `sinkscope select evaluate` has kept in a folder; nothing is locked or changed.

    rows = read_rows(Path("runs/select/cells"))

A folder may hold the cells of several grids. A last line that was cut short is left out.
"""

from __future__ import annotations

from pathlib import Path

from sinkscope.evaluation.grids.store import CellForm, read_cells
from sinkscope.selection.grid.rows import Row, row_of

FORM = CellForm("a comparison of selectors", "sinkscope select evaluate --out", row_of)
"""Cells of such grids."""


def read_rows(folder: Path) -> list[Row]:
    """All cells, in the order in which they ended. Raises `UserError` for a folder without cells, and for a line that
    is none."""
    return [row_of(*kept) for kept in read_cells(folder, FORM)]
