"""Read the cells that an ablation has kept in a folder; nothing is locked or changed.

    rows = read_rows(Path("runs/copy"))

A folder may hold the cells of several grids. A last line that was cut short is left out.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sinkscope.evaluation.ablation.grid import PLAIN, SINKS, Cell, label
from sinkscope.evaluation.ablation.rows import Row, row_of
from sinkscope.evaluation.grids.rows import seed_in
from sinkscope.evaluation.grids.store import CellForm, read_draws
from sinkscope.interventions import MaskSinks
from sinkscope.sinks import make_rule


def read_rows(folder: Path) -> list[Row]:
    """All cells, in the order in which they ended.

    A cell's draw is counted among those that differ by their seed alone. Raises `UserError` for a folder without cells,
    and for a line that is none.
    """
    return [_row(*kept) for kept in read_draws(folder, FORM, "intervention")]


def _row(settings: dict[str, Any], measured: dict[str, Any], draw: int = 0) -> Row:
    intervention = _intervention(settings["intervention"])
    if intervention is None:
        cell = Cell(keys="none", masked=PLAIN, draw=0, intervention=None)
    else:
        masked = intervention.control or SINKS
        cell = Cell(keys=label(intervention.keys), masked=masked, draw=draw, intervention=intervention)
    return row_of(cell, settings, measured)


FORM = CellForm("an ablation", "sinkscope ablate --out", _row)
"""Cells of ablations."""


def _intervention(kept: dict[str, Any] | None) -> MaskSinks | None:
    if kept is None:
        return None
    seed_in(kept)
    keys = kept["keys"]
    if not isinstance(keys, int):
        rest = dict(keys)
        keys = make_rule(str(rest.pop("rule")), **rest)
    return MaskSinks(**{**kept, "keys": keys})
