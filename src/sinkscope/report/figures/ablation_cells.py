"""The cells of an ablation (`sinkscope ablate --out FOLDER`), for drawing.

Cells that differ in more than which keys are masked, such as the number of examples, are kept apart.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sinkscope.errors import UserError
from sinkscope.evaluation.ablation import Row, read_rows
from sinkscope.report.figures.inputs import Ablation

_VARIED = ("keys", "control", "seed")
_SHOWN = ("detect", "detect_from", "how")


def read_ablations(folder: Path) -> tuple[Ablation, ...]:
    """Every model and task of the folder, in the order of its cells.

    Raises `UserError` for a folder without cells, or with a line that is none.
    """
    rows = read_rows(folder)
    plain = {row.experiment: row for row in rows if row.cell.intervention is None}
    groups: dict[str, list[Row]] = {}
    for row in rows:
        if row.cell.intervention is not None:
            groups.setdefault(row.experiment + json.dumps(_shared(row), sort_keys=True), []).append(row)
    if not groups:
        raise UserError(f"{folder} holds no cell in which anything is masked yet: run sinkscope ablate to its end")
    return tuple(_ablation(some, plain.get(some[0].experiment)) for some in groups.values())


def _ablation(rows: Sequence[Row], plain: Row | None) -> Ablation:
    shared = _shared(rows[0])
    masking = ", ".join(f"{name.replace('_', ' ')} {shared[name]}" for name in _SHOWN if name in shared)
    return Ablation(masking=masking, rows=tuple([plain, *rows] if plain is not None else rows))


def _shared(row: Row) -> dict[str, Any]:
    """What an intervention sets beside the keys, the control and its seed."""
    return {name: value for name, value in row.settings["intervention"].items() if name not in _VARIED}
