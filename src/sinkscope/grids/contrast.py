"""Comparing cells in pairs, and what is said of it: data first, one way to put it into a sentence.

Misleads: intervals are about the choice of examples, each for itself; among many comparisons some leave out zero by
chance.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from sinkscope.grids.cell import C, Cell
from sinkscope.grids.outcome import Difference, Outcome, difference

VERDICTS: Mapping[str, str] = MappingProxyType(
    {
        "beyond": "beyond",
        "behind": "behind",
        "within noise": "within noise of",
        "too few": "not compared with",
        "all alike": "not compared with",
    }
)
"""What is said of a difference, and the words before what it was set against."""


def gain(better: str, ours: Sequence[Outcome], theirs: Sequence[Outcome]) -> Difference:
    """How much better the first are than the second, the draws of each averaged, over the same examples."""
    return difference(ours, theirs) if better == "high" else difference(theirs, ours)


def against_reference(cell: Cell[C], reference: Cell[C] | None) -> Difference | None:
    """Score of a cell minus that of the run that it is measured by; None where there is none, and for that run."""
    if reference is None or reference is cell:
        return None
    return difference([cell.outcome], [reference.outcome])


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One thing that a grid says.

    kind: of `VERDICTS`, or why there is none: "not controlled", "nothing done", "over budget".
    """

    where: str
    """Model, task, and what the sentence is about."""
    kind: str
    said: str

    def __str__(self) -> str:
        return f"{self.where}: {self.said}"


def at_places(where: str, label: str, control: str, found: Sequence[tuple[str, Difference, str]]) -> Verdict:
    """How a way compares with its control, place by place. found: place, difference and what stands beside it."""
    parts, kinds = [], []
    for kind, words in VERDICTS.items():
        at = [f"{place} ({one}{beside})" for place, one, beside in found if one.verdict == kind]
        if at:
            parts.append(f"{words} {control} at {', '.join(at)}")
            kinds.append(kind)
    return Verdict(where=where, kind=" and ".join(kinds), said=f"{label} is {'; '.join(parts)}")


def not_controlled(where: str, labels: Iterable[str], things: str, option: str) -> Verdict:
    """That ways were not set against chance. things: what is chosen; option: that would add the control."""
    said = (
        f"not set against random {things}: {', '.join(dict.fromkeys(labels))}; nobody knows whether any {things} would "
        f"have done (add random to {option})"
    )
    return Verdict(where=where, kind="not controlled", said=said)


def told_draws(control: str, draws: int) -> str:
    """ "random, mean of 3 draws"."""
    return control if draws == 1 else f"{control}, mean of {draws} draws"


def distinct(said: Iterable[Verdict]) -> list[Verdict]:
    """Each once, in order."""
    return list({str(one): one for one in said}.values())
