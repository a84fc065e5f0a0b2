"""A finished cell: what was dropped, what came out, and what it weighed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sinkscope.evaluation.compressed.grid import Cell
from sinkscope.evaluation.grids.outcomes import Outcome


@dataclass(frozen=True, kw_only=True)
class Row:
    """One finished cell."""

    model: str
    task: str
    settings: Mapping[str, Any]
    """Everything that decided its numbers: model, measure, compression, versions."""
    cell: Cell
    outcome: Outcome
    better: str
    """Which scores are better, "high" or "low"."""
    unit: str
    """What a score is, in a few words."""
    kept: float
    """Share of the keys that stayed."""
    cache_bytes: float
    """Of an example's cache right after dropping, on average."""
    tokens: int
    """Generated or scored."""
    peak_memory: int | None
    """Bytes beyond those held at the cell's start, at most; None where that is not known."""
    batch_size: int
    seconds: float

    @property
    def when(self) -> str:
        """When keys were dropped."""
        return str(self.settings["measure"]["when"])

    @property
    def nothing_dropped(self) -> bool:
        """Whether something was to be dropped and all was kept."""
        return self.cell.compress is not None and self.kept == 1

    @property
    def tokens_per_second(self) -> float:
        """Generated or scored, the reading of contexts included in the time."""
        return self.tokens / self.seconds


def row_of(cell: Cell, settings: Mapping[str, Any], measured: Mapping[str, Any]) -> Row:
    """From what is kept of a cell. Raises `KeyError`, `TypeError` or `ValueError` for what is none."""
    named = ("better", "unit", "kept", "cache_bytes", "tokens", "peak_memory", "batch_size", "seconds")
    return Row(
        model=str(settings["model"]["name"]),
        task=str(settings["measure"]["task"]),
        settings=settings,
        cell=cell,
        outcome=Outcome.read(measured),
        **{name: measured[name] for name in named},
    )


def same_examples(one: Row, other: Row) -> bool:
    """Whether two rows are of the same model and the same measure."""
    return all(one.settings[name] == other.settings[name] for name in ("model", "measure"))
