"""A finished cell: what was run, what came out, and whether anything was masked at all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sinkscope.evaluation.ablation.base import Removal
from sinkscope.evaluation.ablation.grid import Cell
from sinkscope.evaluation.grids.rows import MeasuredRow, number_in, stated_by
from sinkscope.interventions import MaskSinks

_CHOICE = ("keys", "control", "seed")
"""Of an intervention, what says which keys are masked; the rest says how."""


@dataclass(frozen=True, kw_only=True)
class Row(MeasuredRow):
    """One finished cell."""

    cell: Cell
    removed: Removal | None

    @property
    def masking(self) -> str:
        """How keys are masked, whichever they are: settings that are not as published, in words; often none."""
        if self.cell.intervention is None:
            return ""
        published, settings = vars(MaskSinks()), vars(self.cell.intervention)
        others = {name: settings[name] for name in settings if settings[name] != published[name]}
        return ", ".join(
            f"{name.replace('_', ' ')} {' '.join(map(str, value)) if isinstance(value, tuple) else value}"
            for name, value in others.items()
            if name not in _CHOICE
        )

    @property
    def nothing_masked(self) -> str | None:
        """Where an intervention took nothing away in the whole cell: why that may be. Else None."""
        if self.cell.intervention is None or self.removed is None:
            return None
        if not self.removed["keys"]:
            no_sinks = self.removed["keys"] is None
            return _why_no_sinks(self.cell.intervention) if no_sinks else "there were no other keys to take"
        if self.removed["mass"]:
            return None
        queries = self.cell.intervention.queries
        if queries is None:
            return "the keys that were cut held no attention"
        return f"no query of the groups {', '.join(queries)} may have asked (--mask-queries)"


def row_of(cell: Cell, settings: Mapping[str, Any], measured: Mapping[str, Any]) -> Row:
    """From what is kept of a cell. Raises `KeyError`, `TypeError` or `ValueError` for what is none."""
    return Row(cell=cell, removed=_removal(measured["removed"]), **stated_by(settings, measured))


def _removal(kept: Removal | None) -> Removal | None:
    if kept is None:
        return None
    missing = [name for name in ("keys", "mass", "sink_mass", "cut_mass") if name not in kept]
    if missing:
        raise ValueError(f"{missing[0]} of what was removed is missing")
    return {name: None if kept[name] is None else number_in(kept, name) for name in kept}


def _why_no_sinks(plan: MaskSinks) -> str:
    maybe = []
    if plan.classes is not None:
        maybe.append(f"no sink may be of the class {' or '.join(plan.classes)} (--mask-classes)")
    if not isinstance(plan.keys, int):
        maybe.append("the rule may find no sink")
    if plan.first_step > 0:
        maybe.append(f"runs may end before step {plan.first_step}, the first that is masked (--first-step)")
    return ", or ".join(maybe) or "no layer and head had sinks"
