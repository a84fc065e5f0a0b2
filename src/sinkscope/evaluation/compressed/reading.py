"""Read the cells that `sinkscope compress` has kept in a folder; nothing is locked or changed.

    rows = read_rows(Path("runs/passkey"))

A folder may hold the cells of several grids. A last line that was cut short is left out.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sinkscope.compression import read_compress
from sinkscope.evaluation.compressed.grid import cell_of
from sinkscope.evaluation.compressed.rows import Row, row_of
from sinkscope.evaluation.grids.rows import seed_in
from sinkscope.evaluation.grids.store import CellForm, read_draws


def read_rows(folder: Path) -> list[Row]:
    """All cells, in the order in which they ended.

    A cell's draw is counted among those that differ by their seed alone. Raises `UserError` for a folder without cells,
    and for a line that is none.
    """
    return [_row(*kept) for kept in read_draws(folder, FORM, "compression")]


def _row(settings: dict[str, Any], measured: dict[str, Any], draw: int = 0) -> Row:
    plain = settings["compression"]
    if plain is not None:
        seed_in(plain)
    return row_of(cell_of(None if plain is None else read_compress(plain), draw), settings, measured)


FORM = CellForm("a comparison of compressed caches", "sinkscope compress --out", _row)
"""Cells of such grids."""
