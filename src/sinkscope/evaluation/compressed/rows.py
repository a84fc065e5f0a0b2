"""A finished cell: what was dropped, what came out, and what it weighed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sinkscope.evaluation.compressed.grid import Cell
from sinkscope.evaluation.compressed.ways import WAYS
from sinkscope.evaluation.grids.rows import MeasuredRow, number_in, stated_by, text_in, whole_in


@dataclass(frozen=True, kw_only=True)
class Row(MeasuredRow):
    """One finished cell."""

    cell: Cell
    kept: float
    """Share of the keys of a cache with all keys that stayed."""
    cache_bytes: float
    """Of an example's cache right after dropping, on average."""
    tokens: int
    """Generated or scored."""
    peak_memory: int | None
    """Bytes beyond those held at the cell's start, at most; None where that is not known."""

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
    if text_in(settings["measure"], "when") not in WAYS:
        raise ValueError("keys were dropped at no known time")
    if not isinstance(settings["measure"].get("decoding", {}), dict):
        raise ValueError("decoding has no settings")
    return Row(
        cell=cell,
        kept=number_in(measured, "kept", most=1),
        cache_bytes=number_in(measured, "cache_bytes"),
        tokens=whole_in(measured, "tokens"),
        peak_memory=None if measured["peak_memory"] is None else whole_in(measured, "peak_memory"),
        **stated_by(settings, measured),
    )
