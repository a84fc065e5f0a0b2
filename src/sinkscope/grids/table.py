"""Cells as plain records, and these as Markdown, CSV and tables for people.

A record is flat: one name, one value. What is shown to people of a record is a column of `Tables`, with a word on what
it means.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from typing import Any

from sinkscope.grids.cell import Cell
from sinkscope.grids.outcome import Difference, Outcome
from sinkscope.versions import PACKAGES

Record = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Tables:
    """How the records of a kind of grid are shown.

    columns: what is shown to people, and what it means. shown: those columns of a record. apart: values by which
        records stand in tables of their own, beside model, task and examples. parts: what a line below a
        table tells of how its cells were made, names of values by a heading. left_out: columns that a table goes
        without where there is little room, the leaner the later.
    """

    columns: Mapping[str, str]
    shown: Callable[[Record], dict[str, str]]
    parts: Mapping[str, Sequence[str]]
    left_out: Sequence[Sequence[str]]
    apart: Sequence[str] = ()

    def grouped(self, made: Sequence[Record]) -> dict[str, list[Record]]:
        """The records of every model and task, by a title that says what the scores are.

        Records of one title whose `experiment` differs were measured on other examples, or with other weights: they
        stand apart, numbered.
        """
        groups: dict[tuple[str, Any], list[Record]] = {}
        for one in made:
            title = f"{one['model']}, {one['task']}: {one['unit']} ({one['better']}er is better), n = {one['n']}"
            beside = {name: one[name] for name in self.apart if one[name] is not None}
            title = "; ".join([title, *(f"{name} {value}" for name, value in beside.items())])
            groups.setdefault((title, one.get("experiment")), []).append(one)
        titled: dict[str, list[Record]] = {}
        seen: Counter[str] = Counter()
        for (title, _), some in groups.items():
            seen[title] += 1
            titled[title if seen[title] == 1 else f"{title} #{seen[title]}"] = some
        return titled

    def settings_line(self, made: Sequence[Record]) -> str:
        """How the cells of a table were made: what all of them share, or the values that there are."""
        parts = {part: [_values(made, name) for name in names] for part, names in self.parts.items()}
        return "; ".join(f"{part}: {', '.join(filter(None, values))}" for part, values in parts.items() if any(values))

    def legend(self, columns: Sequence[str]) -> str:
        """What the columns mean."""
        return "; ".join(f"{name}: {self.columns[name]}" for name in columns)

    def columns_of(self, rows: Sequence[Mapping[str, str]]) -> list[str]:
        """Columns in which any of the rows has something to say."""
        return [name for name in self.columns if any(row[name] for row in rows)]

    def markdown(self, made: Sequence[Record]) -> str:
        """A table for every model and task, how it was made, and a legend."""
        lines = []
        named: dict[str, None] = {}
        for title, some in self.grouped(made).items():
            rows = [self.shown(one) for one in some]
            columns = self.columns_of(rows)
            named |= dict.fromkeys(columns)
            lines += [f"### {title}", "", "| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
            lines += ["| " + " | ".join(row[name] for name in columns) + " |" for row in rows]
            lines += ["", self.settings_line(some), ""]
        return "\n".join([*lines, self.legend([name for name in self.columns if name in named]), ""])


def as_csv(made: Sequence[Record]) -> str:
    """With a head line; numbers in full, lists with spaces between."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(made[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _flat(value) for name, value in one.items()} for one in made)
    return text.getvalue()


def number(value: float | None, digits: int) -> str:
    """A number for people; nothing for none."""
    return "" if value is None else f"{value:.{digits}f}"


def told(one: Record, name: str) -> str:
    """The difference of this name with its interval, signed, or with why it has none; nothing where there is none."""
    if one[name] is None:
        return ""
    ends = one[f"{name}_unsure"] or f"{one[f'{name}_low']:+.3f} to {one[f'{name}_high']:+.3f}"
    return f"{one[name]:+.3f} ({ends})"


def span(low: float | None, high: float | None, digits: int = 3) -> str:
    """From here to there; nothing for none."""
    return "" if low is None or high is None else f"{low:.{digits}f} to {high:.{digits}f}"


def common_fields(cell: Cell[Any]) -> Record:
    """What every record begins with, the score with its interval included."""
    named = {name: getattr(cell, name) for name in ("model", "task", "unit", "better")}
    return {**named, "n": cell.outcome.n, **score_fields(cell.outcome)}


def stated_fields(cell: Cell[Any], measure: Sequence[str]) -> Record:
    """What every record ends with: how the cell was made. measure: names of settings of the measure."""
    model, versions = cell.settings["model"], cell.settings.get("versions", {})
    return {
        **{name: cell.measure.get(name) for name in measure},
        "batch_size": cell.batch_size,
        **{name: model.get(name) for name in ("revision", "dtype", "device")},
        **{name: versions.get(name) for name in PACKAGES},
        "experiment": cell.experiment_digest,
    }


def score_fields(outcome: Outcome) -> Record:
    """score, low, high, flat; the ends None where there is no interval, and unsure says why."""
    return {"score": outcome.score, **_ends("", *outcome.interval()), "unsure": outcome.unsure}


def difference_fields(name: str, found: Difference | None) -> Record:
    """A difference by this name, its ends by name_low and name_high, the probability that it is chance by name_p, and
    why it has no ends by name_unsure; None where there is none."""
    if found is None:
        return dict.fromkeys((name, f"{name}_low", f"{name}_high", f"{name}_p", f"{name}_unsure"))
    ends = _ends(f"{name}_", found.low, found.high)
    return {name: found.value, **ends, f"{name}_p": found.p, f"{name}_unsure": found.unsure}


def _ends(prefix: str, low: float, high: float) -> Record:
    return {f"{prefix}{name}": None if isnan(end) else end for name, end in (("low", low), ("high", high))}


def _flat(value: Any) -> Any:
    return " ".join(str(one) for one in value) if isinstance(value, list) else value


def _values(made: Sequence[Record], name: str) -> str:
    *others, last = dict.fromkeys(str(_flat(one[name])) for one in made if one[name] is not None) or [""]
    listed = f"{', '.join(others)} and {last}" if others else last
    return f"{name.replace('_', ' ')} {listed}" if listed else ""
