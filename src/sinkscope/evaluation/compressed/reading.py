"""Read the cells that `sinkscope compress` has kept in a folder; nothing is locked or changed.

    rows = read_rows(Path("runs/passkey"))

A folder may hold the cells of several grids. A last line that was cut short is left out.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sinkscope.compression import read_compress
from sinkscope.evaluation.compressed.grid import cell_of
from sinkscope.evaluation.compressed.rows import Row, row_of
from sinkscope.evaluation.grids.store import CellForm, read_cells


def read_rows(folder: Path) -> list[Row]:
    """All cells, in the order in which they ended.

    A cell's draw is counted among those that differ by their seed alone. Raises `UserError` for a folder without cells,
    and for a line that is none.
    """
    kept = read_cells(folder, FORM)
    seeds: dict[str, set[int]] = {}
    for settings, _ in kept:
        name, seed = _without_seed(settings)
        seeds.setdefault(name, set()).add(seed)
    rows = []
    for settings, measured in kept:
        name, seed = _without_seed(settings)
        rows.append(_row(settings, measured, sorted(seeds[name]).index(seed)))
    return rows


def _row(settings: dict[str, Any], measured: dict[str, Any], draw: int = 0) -> Row:
    plain = settings["compression"]
    return row_of(cell_of(None if plain is None else read_compress(plain), draw), settings, measured)


FORM = CellForm("a comparison of compressed caches", "sinkscope compress --out", _row)
"""Cells of such grids."""


def _without_seed(settings: dict[str, Any]) -> tuple[str, int]:
    """All settings but the seed of random keys, as text that is the same for the same; and that seed."""
    compression = dict(settings["compression"] or {})
    seed = compression.pop("seed", 0)
    return json.dumps({**settings, "compression": compression}, sort_keys=True), seed
