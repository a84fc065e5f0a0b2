"""The cells of a comparison of compressed caches (`sinkscope compress --out FOLDER`), for drawing.

Cells of different models, tasks or examples are kept apart.
"""

from collections.abc import Sequence
from math import inf
from pathlib import Path

from sinkscope.errors import UserError
from sinkscope.evaluation.compressed import CONTROL, Row, read_rows
from sinkscope.evaluation.grids import Outcome, pool
from sinkscope.report.figures.inputs import Compressed

WHOLE_KEPT = "1"


def read_compressions(folder: Path) -> tuple[Compressed, ...]:
    """Every model and task of the folder, in the order of its cells.

    Raises `UserError` for a folder without cells, or with a line that is none.
    """
    groups: dict[str, list[Row]] = {}
    for row in read_rows(folder):
        groups.setdefault(row.experiment, []).append(row)
    if not any(row.cell.compress is not None for some in groups.values() for row in some):
        raise UserError(f"{folder} holds no cell in which anything is dropped yet: run sinkscope compress to its end")
    return tuple(Compressed(rows=tuple(some)) for some in groups.values())


def budget_order(rows: Sequence[Row]) -> list[str]:
    """The budgets that there are, all keys first, then falling ratios and falling numbers of keys."""
    found = dict.fromkeys(row.cell.kept for row in rows if row.cell.compress is not None)
    return [WHOLE_KEPT, *sorted(found, key=_falling)]


def _falling(kept: str) -> tuple[int, float]:
    if kept.endswith(" tokens"):
        return 1, -float(kept.removesuffix(" tokens"))
    return (2, inf) if kept.startswith("by layer") else (0, -float(kept))


def label_order(rows: Sequence[Row]) -> list[str]:
    """Scorers with what is excepted, random keys last."""
    named = {row.cell.label: row.cell.scorer == CONTROL for row in rows if row.cell.compress is not None}
    return sorted(named, key=lambda label: named[label])


def pooled(rows: Sequence[Row], label: str, kept: str) -> Outcome | None:
    """All draws of a cell as one outcome, example by example; for all keys the run without dropping; None where there
    is none."""
    return pool([row.outcome for row in rows if _is(row, label, kept)])


def _is(row: Row, label: str, kept: str) -> bool:
    if kept == WHOLE_KEPT:
        return row.cell.compress is None
    return row.cell.compress is not None and row.cell.label == label and row.cell.kept == kept
