"""What a grid says: does masking sinks cost more than masking a control?

For every number of keys the sinks' run is set against each control over the same examples, masked in the same way by
the same versions, the control's draws averaged: the mean score of its draws on each resample of the examples. Beyond a
control is a difference whose 95 % interval leaves out zero.

Each comparison says what it compares: whether the control masked as many keys and took as much attention away at the
step itself. A control that took less or more of what it is to equal, keys or mass, says little. A run in which nothing
was masked is not compared, and nothing is where there are too few examples for an interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sinkscope.evaluation.ablation.base import Removal
from sinkscope.evaluation.ablation.grid import PLAIN, SINKS
from sinkscope.evaluation.ablation.rows import Row
from sinkscope.evaluation.grids.outcomes import Difference, difference
from sinkscope.evaluation.grids.rows import same_examples
from sinkscope.interventions.controls import find_control

_AS_MANY, _AS_MUCH = 0.05, 0.1
"""Relative differences up to which counts and masses are called the same."""


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
class Contrast:
    """Sinks against a control at one number of keys."""

    model: str
    task: str
    keys: str
    masking: str
    """How keys are masked, where that is not as published."""
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
            "model": self.model,
            "task": self.task,
            "keys": self.keys,
            "masking": self.masking,
            "control": self.control,
            "draws": self.draws,
            "cost": self.cost.value,
            "low": self.cost.low,
            "high": self.cost.high,
            "sinks": None if self.sinks is None else vars(self.sinks),
            "control_masked": None if self.other is None else vars(self.other),
            "unequal": self.unequal,
            "why_unequal": self.why_unequal,
        }


def plain_difference(row: Row, rows: Sequence[Row]) -> Difference | None:
    """Score of a row minus that of the plain run on the same examples.

    None for the plain run itself, where there is none, and where nothing was masked.
    """
    plain = [one for one in rows if same_examples(one, row) and one.cell.masked == PLAIN]
    if row.cell.masked == PLAIN or row.nothing_masked is not None or not plain:
        return None
    return difference([row.outcome], [plain[0].outcome])


def contrasts(rows: Sequence[Row]) -> list[Contrast]:
    """Every sinks' run against every control of the same keys, but for runs in which nothing was masked, and where
    there are too few examples for an interval."""
    found = (_contrast(row, some) for row, some in _pairs(rows) if not _untouched([row, *some]))
    return [one for one in found if one.cost.sure]


def verdicts(rows: Sequence[Row]) -> list[str]:
    """A sentence for every sinks' run and control: whether the sinks cost more, and what was compared."""
    said = []
    for row, some in _pairs(rows):
        untouched = _untouched([row, *some])
        if untouched:
            said.append(_uncompared(row, untouched[0]))
        elif (found := _contrast(row, some)).cost.sure:
            said.append(_sentence(found))
    return list(dict.fromkeys(said))


def _pairs(rows: Sequence[Row]) -> list[tuple[Row, list[Row]]]:
    """Each sinks' run with all draws of a control; with none where its grid has no controls and it masked nothing."""
    found: list[tuple[Row, list[Row]]] = []
    for row in rows:
        if row.cell.masked != SINKS:
            continue
        alike = [one for one in rows if same_examples(one, row) and _masked_alike(one, row) and one is not row]
        controls = dict.fromkeys(one.cell.masked for one in alike if one.cell.masked != SINKS)
        found += [(row, [one for one in alike if one.cell.masked == control]) for control in controls]
        if not controls and row.nothing_masked is not None:
            found.append((row, []))
    return found


def _masked_alike(one: Row, other: Row) -> bool:
    return one.cell.keys == other.cell.keys and one.masking == other.masking


def _untouched(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row.nothing_masked is not None]


def _contrast(row: Row, others: Sequence[Row]) -> Contrast:
    ours, theirs = [row.outcome], [one.outcome for one in others]
    pair = (ours, theirs) if row.better == "low" else (theirs, ours)
    return Contrast(
        model=row.model,
        task=row.task,
        keys=row.cell.keys,
        masking=row.masking,
        control=others[0].cell.masked,
        draws=len(others),
        cost=difference(*pair),
        sinks=_strength([row.removed]),
        other=_strength([one.removed for one in others]),
    )


def _strength(removed: Sequence[Removal | None]) -> Strength | None:
    """Means over draws; None where that was not kept."""
    known = [one for one in removed if one is not None]
    if len(known) < len(removed):
        return None
    return Strength(*(_mean(known, name) for name in ("keys", "mass", "sink_mass", "cut_mass")))


def _mean(removed: Sequence[Removal], name: str) -> float:
    return sum(one[name] or 0.0 for one in removed) / len(removed)


def _uncompared(row: Row, untouched: Row) -> str:
    where = _where(row.model, row.task, row.cell.keys, row.masking)
    if untouched is row:
        return f"{where}: nothing was masked, so nothing is compared: {row.nothing_masked}"
    control = untouched.cell.masked
    return f"{where}: not compared with {control}, under which nothing was masked: {untouched.nothing_masked}"


def _sentence(one: Contrast) -> str:
    if one.cost.low > 0:
        what = "sinks cost more than"
    elif one.cost.high < 0:
        what = "sinks cost less than"
    else:
        what = "no difference shown between sinks and"
    control = one.control if one.draws == 1 else f"{one.control}, mean of {one.draws} draws"
    cost = f"({one.cost.value:+.3f}, {one.cost.low:+.3f} to {one.cost.high:+.3f})"
    said = f"{_where(one.model, one.task, one.keys, one.masking)}: {what} {control} {cost}"
    if one.sinks is None or one.other is None:
        return said
    keys = _compared(one.other.keys, one.sinks.keys, ("fewer", "as many", "more"), "keys", _AS_MANY, 1)
    mass = _compared(one.other.removed, one.sinks.removed, ("less", "as much", "more"), "attention", _AS_MUCH, 2)
    said = f"{said}; the control masked {keys} and removed {mass}"
    return said if one.unequal is None else f"{said}; UNEQUAL, {one.unequal}: {one.why_unequal}"


def _where(model: str, task: str, keys: str, masking: str) -> str:
    return f"{model}, {task}, {keys}" + (f" ({masking})" if masking else "")


def _compared(
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
