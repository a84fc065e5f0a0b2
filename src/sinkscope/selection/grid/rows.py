"""A finished cell: who chose what was sent, what was right, and what it weighed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

from sinkscope.evaluation.grids.rows import MeasuredRow, number_in, stated_by
from sinkscope.selection.grid.cells import Cell, read_cell
from sinkscope.selection.grid.measure import Weighed


@dataclass(frozen=True, kw_only=True)
class Row(MeasuredRow):
    """One finished cell."""

    cell: Cell
    weighed: Weighed


def row_of(settings: Mapping[str, Any], measured: Mapping[str, Any]) -> Row:
    """From what is kept of a cell. Raises `KeyError`, `TypeError` or `ValueError` for what is none."""
    return Row(
        cell=read_cell(settings["selection"]),
        weighed=_weighed(measured),
        **stated_by(settings, measured),
    )


def _weighed(measured: Mapping[str, Any]) -> Weighed:
    def number(name: str) -> float:
        return number_in(measured, name)

    def maybe(name: str, most: float = inf) -> float | None:
        return None if measured[name] is None else number_in(measured, name, most=most)

    return Weighed(
        asked=number_in(measured, "asked", most=1),
        sent=maybe("sent", 1),
        most=maybe("most", 1),
        symbols=number("symbols"),
        rho=number("rho"),
        fits=maybe("fits", 1),
        bits=maybe("bits"),
        camera=number("camera"),
        server=number("server"),
        whole=number("whole"),
    )
