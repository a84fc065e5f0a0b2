"""A finished cell: what was run, what came out, and whether anything was masked at all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sinkscope.evaluation.ablation.base import Removal
from sinkscope.evaluation.ablation.grid import Cell
from sinkscope.evaluation.grids.outcomes import Outcome
from sinkscope.interventions import MaskSinks


@dataclass(frozen=True, kw_only=True)
class Row:
    """One finished cell."""

    model: str
    task: str
    settings: Mapping[str, Any]
    """Everything that decided its numbers: model, measure, intervention, versions."""
    cell: Cell
    outcome: Outcome
    removed: Removal | None
    better: str
    """Which scores are better, "high" or "low"."""
    unit: str
    """What a score is, in a few words."""
    batch_size: int
    seconds: float

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
    return Row(
        model=str(settings["model"]["name"]),
        task=str(settings["measure"]["task"]),
        settings=settings,
        cell=cell,
        outcome=Outcome.read(measured),
        removed=measured["removed"],
        better=measured["better"],
        unit=measured["unit"],
        batch_size=measured["batch_size"],
        seconds=measured["seconds"],
    )


def same_examples(one: Row, other: Row) -> bool:
    """Whether two rows are of the same model and the same measure."""
    return all(one.settings[name] == other.settings[name] for name in ("model", "measure"))


def _why_no_sinks(plan: MaskSinks) -> str:
    maybe = []
    if plan.classes is not None:
        maybe.append(f"no sink may be of the class {' or '.join(plan.classes)} (--mask-classes)")
    if not isinstance(plan.keys, int):
        maybe.append("the rule may find no sink")
    if plan.first_step > 0:
        maybe.append(f"runs may end before step {plan.first_step}, the first that is masked (--first-step)")
    return ", or ".join(maybe) or "no layer and head had sinks"
