"""Findings of the laboratory as plain records, and how they are shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from sinkscope.experiments.points import Spread
from sinkscope.grids.table import Record, Tables
from sinkscope.lab.studies import Finding

UNIT = "nats a token"
COLUMNS: Mapping[str, str] = MappingProxyType(
    {
        "changed": "of the default recipe",
        "pass": "text: whole contexts; masked: the share of the symbols that is masked",
        "above entropy": "the loss above the chain's own entropy, all passes together (joint: under this mask)",
        "first": "what the first token receives of those that may see it, mean over heads",
        "Sink_1": "share of heads in which that is more than .3 (Gu et al.)",
        "deep": "the same in all layers but the first",
        "strongest": "what the strongest key of a head receives",
        "at first": "share of heads and contexts where that is the first token",
        "masked": "share where it is a mask",
        "moved": "share of heads whose strongest key differs between neighbouring shares of masks",
        "idle": "what the first token receives, in its strongest head, from queries that no trigger concerns",
        "busy": "the same from triggers",
        "value": "norm of the strongest key's value, in medians of its head",
        "key": "the same of its key",
        "hide first": "what hiding the first token costs",
        "hide strongest": "what hiding the strongest key of every head costs",
        "hide random": "what hiding another key costs",
        "hide equal": "what hiding other keys of as much attention costs",
        "removed": "attention that the strongest keys held, and the other keys of as much",
        "seeds": "number of trainings; means over them, with Student's 95 % interval where it says so",
    }
)
"""What is shown to people, and what it means."""
_MEANS = MappingProxyType(
    {
        "first": "first_received", "Sink_1": "sink_1", "deep": "sink_1_deep", "strongest": "strongest_received",
        "at first": "strongest_first", "masked": "strongest_masked", "moved": "moved", "idle": "dormant",
        "busy": "active", "value": "value_norm", "key": "key_norm",
    }
)  # fmt: skip
_HIDDEN = MappingProxyType({"first": "first", "strongest": "strongest", "random": "random", "equal": "equal-mass"})


def records(found: Sequence[Finding]) -> list[Record]:
    """One flat record a recipe and pass: every number as its mean over seeds, with _low and _high (Student's 95 %
    interval, None of fewer than three seeds) and _least and _most (of the seeds)."""
    made = [_record(one) for one in found]
    names = dict.fromkeys(name for one in made for name in one)  # what one objective measures and another does not
    return [{name: one.get(name) for name in names} for one in made]


def _record(one: Finding) -> Record:
    made: Record = {
        "model": one.objective, "task": "chains", "unit": UNIT, "better": "low", "n": one.seeds,
        "changed": one.recipe.name, "pass": one.where, "seeds": one.seeds,
    }  # fmt: skip
    for name, spread in one.values.items():
        made |= _fields(name.replace(" ", "_").replace("-", "_"), spread)
    return made


def _fields(name: str, spread: Spread) -> Record:
    low, high = spread.interval or (None, None)
    ends = {"low": low, "high": high, "least": spread.lowest, "most": spread.highest}
    return {name: spread.mean, **{f"{name}_{end}": value for end, value in ends.items()}}


def _shown(one: Record) -> dict[str, str]:
    row = {"changed": one["changed"], "pass": one["pass"], "above entropy": _told(one, "excess", 3)}
    row |= {name: "" if one.get(stat) is None else f"{one[stat]:.2f}" for name, stat in _MEANS.items()}
    for name, hidden in _HIDDEN.items():
        row[f"hide {name}"] = _told(one, f"cost_{hidden.replace('-', '_')}_all", 2)
    row["removed"] = f"{one['removed_strongest']:.2f}, {one['removed_equal_mass']:.2f}"
    return {**row, "seeds": str(one["seeds"])}


def _told(one: Record, name: str, digits: int) -> str:
    if one.get(name) is None:
        return ""
    ends = one[f"{name}_low"], one[f"{name}_high"]
    known = "" if ends[0] is None else f" ({ends[0]:.{digits}f} to {ends[1]:.{digits}f})"
    return f"{one[name]:.{digits}f}{known}"


_LEAN = ("removed", "key", "value", "masked", "busy", "idle", "moved", "deep", "at first", "seeds", "first")
TABLES = Tables(
    columns=COLUMNS,
    shown=_shown,
    parts={},
    left_out=[_LEAN[:count] for count in range(len(_LEAN) + 1)],
)
"""How they are shown."""
