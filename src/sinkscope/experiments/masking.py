"""Masking sinks: what does it cost, and does it cost more than masking a control?

    measure = find_measure("passkey", MeasureOptions())(model)
    cells = ablate([measure], MaskingGrid(keys=(1, 5)))
    verdicts(cells)

For every number of keys the sinks' run is set against each control over the same examples, masked in the same way by
the same versions, the control's draws averaged. Beyond a control is a difference whose 95 % interval leaves out zero.

Each comparison says what it compares: whether the control masked as many keys and took as much attention away at the
step itself. A control that took less or more of what it is to equal, keys or mass, says little. A run in which nothing
was masked is not compared, and of too few examples nothing is said.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from sinkscope.errors import UserError
from sinkscope.evaluation.conditions import SINKS, KeysCondition, masking_key, read_condition
from sinkscope.evaluation.measuring import KeysMeasure, check_cell, grid_work, removal_of
from sinkscope.grids.cell import Cell
from sinkscope.grids.contrast import Verdict, against_reference, distinct, gain, told_draws
from sinkscope.grids.outcome import Difference
from sinkscope.grids.run import Keeping, Observer, run_grid
from sinkscope.grids.store import Form, read_cells
from sinkscope.interventions import MaskSinks
from sinkscope.interventions.controls import find_control
from sinkscope.sinks import SinkRule

KeysCell = Cell[KeysCondition]
FORM = Form("ablation", "an ablation", "sinkscope ablate --out", read_condition, check_cell)
_AS_MANY, _AS_MUCH = 0.05, 0.1
"""Relative differences up to which counts and masses are called the same."""
_WORDS = {
    "beyond": "sinks cost more than",
    "behind": "sinks cost less than",
    "within noise": "no difference shown between sinks and",
    "too few": "sinks are not compared with",
    "all alike": "sinks are not compared with",
}
"""Before the control's name, by verdict."""


@dataclass(frozen=True, kw_only=True)
class MaskingGrid:
    """What is varied: keys x (sinks and controls) x draws, everything else as in `masking` and `beside`.

    keys: numbers of keys to mask or sink rules; 0 is the plain run, which is always there. draws: of every control that
    draws at random. beside: what is done in all cells, keys dropped from the cache for example.
    Raises `UserError` for a grid without cells, or with one twice.
    """

    keys: Sequence[SinkRule | int] = (0, 1, 5, 10)
    controls: Sequence[str] = ("random", "equal-mass")
    draws: int = 1
    masking: MaskSinks = field(default_factory=MaskSinks)
    beside: KeysCondition = field(default_factory=KeysCondition)
    form: ClassVar[Form[KeysCondition]] = FORM

    def __post_init__(self) -> None:
        for name, values in (("number of keys or rule", self.keys), ("control", self.controls)):
            twice = [value for number, value in enumerate(values) if value in list(values)[:number]]
            if twice:
                raise UserError(f"the {name} {twice[0]!r} is named twice; name each once")
        if self.draws < 1:
            raise UserError(f"draws must be at least 1, got {self.draws}")
        if not [keys for keys in self.keys if keys != 0]:
            raise UserError("nothing is masked in this grid; name a number of keys above 0")
        self.conditions(None)  # refuses unknown controls

    def conditions(self, point: str | None) -> list[KeysCondition]:
        """All of them, the plain run first. point: the eviction point of a measure."""
        beside = replace(self.beside, point=point)
        found = [beside]
        for keys in self.keys:
            if keys == 0:
                continue
            sinks = replace(self.masking, keys=keys, control=None)
            found.append(replace(beside, intervention=sinks))
            for control in self.controls:
                chosen = replace(sinks, control=control)
                seeds = [self.masking.seed + draw for draw in range(self.draws if chosen.draws else 1)]
                found += [replace(beside, intervention=replace(chosen, seed=seed)) for seed in seeds]
        return found


def ablate(
    measures: Sequence[KeysMeasure],
    grid: MaskingGrid,
    keeping: Keeping | None = None,
    observer: Observer | None = None,
) -> list[KeysCell]:
    """Every cell of the grid for every measure, in their order. Raises `UserError` as `run_grid` does."""
    return run_grid(grid_work(measures, lambda one: grid.conditions(one.point)), FORM, keeping, observer)


def read_maskings(folder: Path) -> list[KeysCell]:
    """All cells that an ablation has kept in a folder."""
    return read_cells(folder, FORM)


def nothing_masked(cell: KeysCell) -> str | None:
    """Where an intervention took nothing away in the whole cell: why that may be. Else None."""
    masking, removed = cell.condition.intervention, removal_of(cell.stats)
    if masking is None or removed is None:
        return None
    if not removed["keys"]:
        return _why_no_sinks(masking) if removed["keys"] is None else "there were no other keys to take"
    if removed["mass"]:
        return None
    if masking.queries is None:
        return "the keys that were cut held no attention"
    return f"no query of the groups {', '.join(masking.queries)} may have asked (--mask-queries)"


def _why_no_sinks(masking: MaskSinks) -> str:
    maybe = []
    if masking.classes is not None:
        maybe.append(f"no sink may be of the class {' or '.join(masking.classes)} (--mask-classes)")
    if not isinstance(masking.keys, int):
        maybe.append("the rule may find no sink")
    if masking.first_step > 0:
        maybe.append(f"runs may end before step {masking.first_step}, the first that is masked (--first-step)")
    return ", or ".join(maybe) or "no layer and head had sinks"


@dataclass(frozen=True)
class Strength:
    """How much a run masked, means over its layers and heads with sinks."""

    keys: float
    removed: float
    """Attention removed at the step itself."""
    wanted: float
    """Received attention of the sinks that it found, by the map they were found in."""
    reached: float
    """Received attention of what was masked, by the same map."""


@dataclass(frozen=True)
class MaskingContrast:
    """Sinks against a control at one number of keys."""

    model: str
    task: str
    keys: str
    masking: str
    """How keys are masked, where that is not as published, and what is dropped beside."""
    control: str
    draws: int
    cost: Difference
    """How much worse the sinks' run is than the control's, in the score's own unit."""
    sinks: Strength | None
    other: Strength | None
    """Of the control, its draws averaged."""

    @property
    def unequal(self) -> str | None:
        """ "less" or "more", where the control took that of what it is to equal, at the step before by the map; None
        where it took as much or as many."""
        sides = [side for side, _ in self._apart]
        return sides[0] if sides else None

    @property
    def why_unequal(self) -> str | None:
        """How the control lies apart from the sinks, in words."""
        return " and ".join(said for _, said in self._apart) or None

    @property
    def _apart(self) -> list[tuple[str, str]]:
        if self.sinks is None or self.other is None:
            return []
        control, ours, its = find_control(self.control), self.sinks, self.other
        if not control.by_mass:
            compared = [(its.keys, ours.keys, _AS_MANY, f"it found {its.keys:.1f} keys in place of {ours.keys:.1f}")]
        else:
            at_step = f"it removed {{}} at the step, {its.removed:.2f} for {ours.removed:.2f}"
            compared = [(its.removed, ours.removed, _AS_MUCH, at_step)]
            if not control.at_step:
                by_map = f"its keys held {its.reached:.2f} of {its.wanted:.2f} by the map"
                compared.append((its.reached, its.wanted, _AS_MUCH, by_map))
        sides = [(_side(value, reference, tolerance), said) for value, reference, tolerance, said in compared]
        return [(side, said.format(side)) for side, said in sides if side is not None]

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            **{name: getattr(self, name) for name in ("model", "task", "keys", "masking", "control", "draws")},
            **self.cost.to_dict("cost"),
            "sinks": None if self.sinks is None else vars(self.sinks),
            "control_masked": None if self.other is None else vars(self.other),
            "unequal": self.unequal,
            "why_unequal": self.why_unequal,
        }


def plain_difference(cell: KeysCell, cells: Sequence[KeysCell]) -> Difference | None:
    """Score of a cell minus that of the run in which nothing is masked, on the same examples; None where nothing was
    masked."""
    if cell.condition.intervention is None or nothing_masked(cell) is not None:
        return None
    plain = [one for one in cells if one.experiment == cell.experiment and one.condition.intervention is None]
    alike = [one for one in plain if one.condition == replace(cell.condition, intervention=None)]
    return against_reference(cell, alike[0] if alike else None)


def contrasts(cells: Sequence[KeysCell]) -> list[MaskingContrast]:
    """Every sinks' run against every control of the same keys, but for runs in which nothing was masked."""
    return [_contrast(cell, some) for cell, some in _pairs(cells) if not _untouched([cell, *some])]


def verdicts(cells: Sequence[KeysCell]) -> list[Verdict]:
    """For every sinks' run and control: whether the sinks cost more, and what was compared."""
    said = []
    for cell, some in _pairs(cells):
        untouched = _untouched([cell, *some])
        said.append(_uncompared(cell, untouched[0]) if untouched else _compared(_contrast(cell, some)))
    return distinct(said)


def _pairs(cells: Sequence[KeysCell]) -> list[tuple[KeysCell, list[KeysCell]]]:
    """Each sinks' run with all draws of a control; with none where its grid has no controls and it masked nothing."""
    alike: dict[tuple[str, str], list[KeysCell]] = {}
    for cell in cells:
        if cell.condition.intervention is not None:
            alike.setdefault((cell.experiment, masking_key(cell.condition)), []).append(cell)
    found: list[tuple[KeysCell, list[KeysCell]]] = []
    for cell in cells:
        if cell.condition.masked != SINKS:
            continue
        others = [one for one in alike[cell.experiment, masking_key(cell.condition)] if one is not cell]
        controls = dict.fromkeys(one.condition.masked for one in others if one.condition.masked != SINKS)
        found += [(cell, [one for one in others if one.condition.masked == control]) for control in controls]
        if not controls and nothing_masked(cell) is not None:
            found.append((cell, []))
    return found


def _untouched(cells: Sequence[KeysCell]) -> list[KeysCell]:
    return [cell for cell in cells if nothing_masked(cell) is not None]


def _contrast(cell: KeysCell, others: Sequence[KeysCell]) -> MaskingContrast:
    return MaskingContrast(
        model=cell.model,
        task=cell.task,
        keys=cell.condition.keys,
        masking=_how(cell.condition),
        control=others[0].condition.masked,
        draws=len(others),
        cost=gain(cell.better, [one.outcome for one in others], [cell.outcome]),
        sinks=_strength([cell]),
        other=_strength(others),
    )


def _strength(cells: Sequence[KeysCell]) -> Strength | None:
    """Means over draws; None where that was not kept."""
    known = [found for cell in cells if (found := removal_of(cell.stats)) is not None]
    if len(known) < len(cells):
        return None
    means = (sum(one[name] or 0.0 for one in known) / len(known) for name in ("keys", "mass", "sink_mass", "cut_mass"))
    return Strength(*means)


def _uncompared(cell: KeysCell, untouched: KeysCell) -> Verdict:
    why = nothing_masked(untouched)
    if untouched is cell:
        said = f"nothing was masked, so nothing is compared: {why}"
    else:
        said = f"not compared with {untouched.condition.masked}, under which nothing was masked: {why}"
    where = _where(cell.model, cell.task, cell.condition.keys, _how(cell.condition))
    return Verdict(where=where, kind="nothing done", said=said)


def _compared(one: MaskingContrast) -> Verdict:
    said = f"{_WORDS[one.cost.verdict]} {told_draws(one.control, one.draws)} ({one.cost})"
    if one.sinks is not None and one.other is not None:
        keys = _beside(one.other.keys, one.sinks.keys, ("fewer", "as many", "more"), "keys", _AS_MANY, 1)
        mass = _beside(one.other.removed, one.sinks.removed, ("less", "as much", "more"), "attention", _AS_MUCH, 2)
        said = f"{said}; the control masked {keys} and removed {mass}"
        if one.unequal is not None:
            said = f"{said}; UNEQUAL, {one.unequal}: {one.why_unequal}"
    return Verdict(where=_where(one.model, one.task, one.keys, one.masking), kind=one.cost.verdict, said=said)


def _how(condition: KeysCondition) -> str:
    """How keys are masked where that is not as published, and what is dropped beside."""
    dropped = "" if condition.compression is None else f"dropped {condition.dropping} at {condition.kept}"
    return "; ".join(filter(None, (condition.masking, dropped, "" if not dropped else f"when {condition.point}")))


def _where(model: str, task: str, keys: str, masking: str) -> str:
    return f"{model}, {task}, {keys}" + (f" ({masking})" if masking else "")


def _beside(
    value: float, reference: float, words: tuple[str, str, str], noun: str, tolerance: float, digits: int
) -> str:
    """ "fewer keys (7.4 for 10.0)": how a number lies to another, and both."""
    less, same, more = words
    word = {None: same, "less": less, "more": more}[_side(value, reference, tolerance)]
    return f"{word} {noun} ({value:.{digits}f} for {reference:.{digits}f})"


def _side(value: float, reference: float, tolerance: float) -> str | None:
    """Whether a number is "less" or "more" than another by more than a share of it; None where it is neither."""
    apart = value - reference
    if abs(apart) <= tolerance * reference:
        return None
    return "less" if apart < 0 else "more"
