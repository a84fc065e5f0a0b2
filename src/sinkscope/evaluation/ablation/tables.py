"""A grid as plain records, and these as Markdown, CSV and tables."""

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

from sinkscope.evaluation.ablation.contrasts import plain_difference
from sinkscope.evaluation.ablation.running import Row


def records(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """One flat record a cell.

    difference: score minus the plain run's. keys_cut: keys masked in a layer and head with sinks. mass: attention
    removed at the step itself. sink_mass, cut_mass: received attention of the sinks and of what was cut, by the map
    they were found in. mask_share: share of the masked keys that hold [MASK]. repeated_share: share that the same layer
    and head lost one step before too.
    """
    return [_record(row, rows) for row in rows]


def _record(row: Row, rows: Sequence[Row]) -> dict[str, Any]:
    low, high = row.outcome.interval()
    against = plain_difference(row, rows)
    removed = dict(row.removed or {})
    return {
        "model": row.model,
        "task": row.task,
        "keys": row.cell.keys,
        "masked": row.cell.masked,
        "draw": row.cell.draw,
        "n": row.outcome.n,
        "score": row.outcome.score,
        "low": low,
        "high": high,
        "difference": None if against is None else against.value,
        "difference_low": None if against is None else against.low,
        "difference_high": None if against is None else against.high,
        "keys_cut": removed.get("keys"),
        "mass": removed.get("mass"),
        "sink_mass": removed.get("sink_mass"),
        "cut_mass": removed.get("cut_mass"),
        "mask_share": removed.get("mask_share"),
        "repeated_share": removed.get("repeated_share"),
        "seconds": row.seconds,
    }


def as_csv(made: Sequence[Mapping[str, Any]]) -> str:
    """With a head line; numbers in full."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(made[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(made)
    return text.getvalue()


COLUMNS = ("keys", "masked", "n", "score", "difference", "keys cut", "mass", "by the map", "[MASK]", "s")
"""difference: to the plain run on the same examples; intervals in parentheses. keys cut, mass: of each layer and head,
see `records`. by the map: received attention of what was cut, of that of the sinks, by the map they were found in.
[MASK]: share of the keys cut that hold the mask token."""


def shown(made: Sequence[Mapping[str, Any]]) -> dict[str, list[list[str]]]:
    """For every model and task ("model, task") the columns of `COLUMNS` for people."""
    tables: dict[str, list[list[str]]] = {}
    for one in made:
        tables.setdefault(f"{one['model']}, {one['task']}", []).append(_shown(one))
    return tables


def as_markdown(made: Sequence[Mapping[str, Any]]) -> str:
    """A table for every model and task."""
    lines = []
    for title, cells in shown(made).items():
        lines += [f"### {title}", "", "| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
        lines += ["| " + " | ".join(row) + " |" for row in cells] + [""]
    return "\n".join(lines)


def _shown(one: Mapping[str, Any]) -> list[str]:
    return [
        one["keys"],
        one["masked"] if one["draw"] == 0 else f"{one['masked']} #{one['draw'] + 1}",
        str(one["n"]),
        f"{one['score']:.3f} ({one['low']:.3f} to {one['high']:.3f})",
        ""
        if one["difference"] is None
        else f"{one['difference']:+.3f} ({one['difference_low']:+.3f} to {one['difference_high']:+.3f})",
        _number(one["keys_cut"], 1),
        _number(one["mass"], 3),
        "" if one["cut_mass"] is None else f"{one['cut_mass']:.2f} of {one['sink_mass']:.2f}",
        _number(one["mask_share"], 2),
        f"{one['seconds']:.1f}",
    ]


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"
