"""The log of a training: one JSON object a line and point, small enough to ship with the twin."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sinkscope.errors import UserError
from sinkscope.outputs import write_whole

NAME = "training_log.jsonl"


def read_log(folder: Path) -> list[dict[str, Any]]:
    """The rows so far, in the order of their points; none where there is no log.

    A last line that was cut short is left out: its point is measured again. Raises `UserError` for any other line that
    is no row.
    """
    file = folder / NAME
    lines = file.read_bytes().splitlines() if file.is_file() else []
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(lines, 1):
        row = _row(line)
        if row is not None:
            rows.append(row)
        elif number < len(lines):
            raise UserError(
                f"{file}, line {number} is no row of a training log; restore the file, or remove it to measure anew"
            )
    return rows


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if type(row) is dict and type(row.get("point")) is int else None


def write_log(folder: Path, rows: list[dict[str, Any]]) -> None:
    """Write the rows, whole or not at all."""
    write_whole(folder / NAME, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
