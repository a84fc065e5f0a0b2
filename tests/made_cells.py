"""Rows of ablations with outcomes and removals of one's own."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sinkscope.evaluation.ablation import Cell, Grid, Outcome, Row

SETTINGS: dict[str, Any] = {
    "model": {"name": "m", "revision": None, "dtype": "torch.float32", "device": "cpu"},
    "measure": {"task": "t", "seed": 3, "room": 29},
    "versions": {"sinkscope": "0.0", "torch": "0.1", "transformers": "0.2"},
}


def exact(*right: float) -> Outcome:
    """Exact answers."""
    return Outcome(np.array(right, dtype=np.float64), np.ones(len(right)), exact=True)


def removal(keys: float | None, mass: float | None = 0.25, reached: float = 0.5, wanted: float = 0.5) -> dict[str, Any]:
    """What a run took away."""
    return {
        "keys": keys, "mass": None if keys is None else mass, "sink_mass": wanted, "cut_mass": reached,
        "mask_share": 0.1, "repeated_share": 0.0,
    }  # fmt: skip


def made_row(cell: Cell, outcome: Outcome, removed: dict[str, Any] | None = None, better: str = "high") -> Row:
    """A finished cell."""
    intervention = None if cell.intervention is None else cell.intervention.to_dict()
    return Row(
        model="m", task="t", better=better, unit="points", cell=cell, outcome=outcome, removed=removed, batch_size=7,
        seconds=1.0, settings=json.loads(json.dumps({**SETTINGS, "intervention": intervention})),
    )  # fmt: skip


def made_rows(
    sinks: Outcome,
    controls: Mapping[str, Sequence[Outcome]],
    removed: Mapping[str, dict[str, Any]] | None = None,
    better: str = "high",
    **grid: Any,
) -> list[Row]:
    """A grid of one number of keys. removed: by what is masked."""
    plain = Outcome(np.ones(sinks.n), np.ones(sinks.n), sinks.exact)
    draws = max((len(some) for some in controls.values()), default=1)
    outcomes = {"plain": [plain], "sinks": [sinks], **controls}
    cells = Grid(**{"keys": (2,), "controls": tuple(controls), "draws": draws, **grid}).cells()
    taken = removed or {}
    return [
        made_row(cell, outcomes[cell.masked][cell.draw], taken.get(cell.masked), better)
        for cell in cells
        if cell.draw < len(outcomes[cell.masked])
    ]
