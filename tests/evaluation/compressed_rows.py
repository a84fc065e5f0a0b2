"""Rows of comparisons of compressed caches with outcomes of one's own."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from made_rows import SETTINGS, exact

from sinkscope.compression import Compress
from sinkscope.evaluation.compressed import Row
from sinkscope.evaluation.compressed.grid import Cell, Grid
from sinkscope.evaluation.grids import Outcome

MEASURE: dict[str, Any] = {**SETTINGS["measure"], "when": "context"}
WEIGHED: dict[str, Any] = {"cache_bytes": 4096.0, "tokens": 30, "peak_memory": 3 * 1024 * 1024}


def made_row(
    cell: Cell, outcome: Outcome, better: str = "high", kept: float | None = None, when: str = "context"
) -> Row:
    """A finished cell."""
    compression = None if cell.compress is None else cell.compress.to_dict()
    settings = {**SETTINGS, "measure": {**MEASURE, "when": when}, "compression": compression}
    return Row(
        model="m", task="t", settings=json.loads(json.dumps(settings)), cell=cell, outcome=outcome, better=better,
        unit="points" if better == "high" else "nats a token", batch_size=7, seconds=1.5,
        kept=(1.0 if cell.compress is None else 0.5) if kept is None else kept, **WEIGHED,
    )  # fmt: skip


def made_rows(outcomes: Mapping[str, Sequence[Outcome]], better: str = "high", **grid: Any) -> list[Row]:
    """A grid of one budget, all keys being always right. outcomes: the draws of each scorer."""
    n = next(iter(outcomes.values()))[0].n
    draws = max(map(len, outcomes.values()))
    cells = Grid(**{"scorers": tuple(outcomes), "budgets": (0.5,), "draws": draws, **grid}).cells_for("context")
    whole = {"all keys": [exact(*[1] * n)]}
    every = {**whole, **outcomes}
    return [
        made_row(cell, every[cell.scorer][cell.draw], better) for cell in cells if cell.draw < len(every[cell.scorer])
    ]


def compress_of(row: Row) -> Compress:
    """What was dropped."""
    assert row.cell.compress is not None
    return row.cell.compress
