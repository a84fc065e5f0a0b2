"""What a grid says: is a scorer any better than keeping as many keys at random?

Every scorer is set against `random` at the same budget, with the same exceptions and over the same examples, the draws
averaged. Beyond or behind random is a difference whose 95 % interval leaves out zero; of too few examples nothing is
said. A cell from which nothing was dropped is not compared.

Misleads: intervals are about the choice of examples, each for itself; among many comparisons some leave out zero by
chance. Where random keeps the first tokens by luck it does much better, so give it several draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sinkscope.evaluation.compressed.grid import CONTROL
from sinkscope.evaluation.compressed.rows import Row
from sinkscope.evaluation.grids.outcomes import VERDICTS, Difference, difference
from sinkscope.evaluation.grids.rows import same_examples


@dataclass(frozen=True)
class Contrast:
    """A scorer against random keys at one budget."""

    model: str
    task: str
    when: str
    scorer: str
    around: str
    kept: str
    draws: int
    """Of random."""
    n: int
    gain: Difference
    """How much better the scorer is, in the score's own unit."""

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        named = ("model", "task", "when", "scorer", "around", "kept", "draws", "n")
        return {**{name: getattr(self, name) for name in named}, **self.gain.to_dict("gain")}


def whole_difference(row: Row, rows: Sequence[Row]) -> Difference | None:
    """Score of a row minus that with all keys, on the same examples.

    None for the run with all keys itself, where there is none, and where nothing was dropped.
    """
    whole = [one for one in rows if same_examples(one, row) and one.cell.compress is None]
    if row.cell.compress is None or row.nothing_dropped or not whole:
        return None
    return difference([row.outcome], [whole[0].outcome])


def contrast(row: Row, rows: Sequence[Row]) -> Contrast | None:
    """A row against random keys; None for random itself, where there is none, and where nothing was dropped."""
    controls = [one for one in rows if same_examples(one, row) and _is_control_of(one, row)]
    compared = row.cell.compress is not None and row.cell.scorer != CONTROL and controls
    if not compared or any(one.nothing_dropped for one in [row, *controls]):
        return None
    ours, theirs = [row.outcome], [one.outcome for one in controls]
    gain = difference(ours, theirs) if row.better == "high" else difference(theirs, ours)
    return Contrast(
        model=row.model,
        task=row.task,
        when=row.when,
        scorer=row.cell.scorer,
        around=row.cell.around,
        kept=row.cell.kept,
        draws=len(controls),
        n=row.outcome.n,
        gain=gain,
    )


def contrasts(rows: Sequence[Row]) -> list[Contrast]:
    """Every row that can be set against random keys."""
    return [found for row in rows if (found := contrast(row, rows)) is not None]


def verdicts(rows: Sequence[Row]) -> list[str]:
    """A sentence for every scorer: at which budgets it is beyond random, behind it, or within noise of it."""
    alone: dict[str, list[Row]] = {}
    for row in rows:
        if _lacks_control(row, rows):
            alone.setdefault(row.experiment, []).append(row)
    said = [_uncontrolled(some) for some in alone.values()]
    by_scorer: dict[tuple[object, ...], list[Contrast]] = {}
    for row in rows:
        one = contrast(row, rows)
        if one is not None:
            by_scorer.setdefault((row.experiment, row.cell.label, _pruned_after(row)), []).append(one)
    said += [_sentence(some) for some in by_scorer.values()]
    said += [_kept_all(row) for row in rows if row.nothing_dropped]
    return list(dict.fromkeys(said))


def _is_control_of(one: Row, row: Row) -> bool:
    return one.cell.scorer == CONTROL and one.cell.place == row.cell.place


def _pruned_after(row: Row) -> int | None:
    return None if row.cell.compress is None else row.cell.compress.prune_after


def _lacks_control(row: Row, rows: Sequence[Row]) -> bool:
    if row.cell.compress is None or row.cell.scorer == CONTROL:
        return False
    return not any(same_examples(one, row) and _is_control_of(one, row) for one in rows)


def _uncontrolled(some: Sequence[Row]) -> str:
    labels = ", ".join(dict.fromkeys(row.cell.label for row in some))
    return (
        f"{some[0].model}, {some[0].task}: not set against random keys: {labels}; nobody knows whether any keys would "
        "have done (add random to --scorer)"
    )


def _kept_all(row: Row) -> str:
    why = "no layer ever held more than --prune-after keys" if row.when == "decode" else "the budget keeps every key"
    return f"{row.model}, {row.task}, {row.cell.label} at {row.cell.kept}: nothing was dropped: {why}"


def _sentence(some: Sequence[Contrast]) -> str:
    one = some[0]
    draws = "" if one.draws == 1 else f", mean of {one.draws} draws"
    label = ", ".join(filter(None, (one.scorer, one.around)))
    parts = []
    for verdict, words in VERDICTS.items():
        found = [f"{this.kept} ({this.gain})" for this in some if this.gain.verdict == verdict]
        if found:
            parts.append(f"{words} random{draws} at {', '.join(found)}")
    return f"{one.model}, {one.task} (n = {one.n}): {label} is {'; '.join(parts)}"
