"""All tables of many samples in one pass, as labelled arrays and as strict JSON.

    report = summarise(samples, Excess(), group="masked", tables=["layers", "tokens"])
    report.tables["layers"]["top_score"]
    json.dumps(report.to_dict(), allow_nan=False)

Samples are taken from any iterable, one at a time, and forgotten: memory is that of one sample.
Weights: see `base.py` and each table. A sample of which no step is on disk yet is counted in `skipped` and otherwise
left out.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np
import xarray as xr

from sinkscope.discovery import Names
from sinkscope.errors import UserError
from sinkscope.sinks.lexicon import model_attributes, require_same_model
from sinkscope.sinks.queries import group_atoms
from sinkscope.sinks.rules import SinkRule
from sinkscope.sinks.tables import counts, groups, kinds, moving
from sinkscope.sinks.tables.base import Table, View, Vocabulary, add_sums

TABLES: Names[Table] = Names("table")
"""All tables by name, in the order in which they are shown."""
for _table in (*counts.TABLES, *moving.TABLES, *groups.TABLES, *kinds.TABLES):
    TABLES.add(_table.name, _table)


class NoQueriesError(UserError):
    """The samples have no step at which the group asks."""


@dataclass(frozen=True)
class SinkReport:
    """What `summarise` found. `absent` gives, for every table that is not there, the reason."""

    rule: dict[str, Any]
    group: str
    model: dict[str, Any]
    samples: int
    skipped: int
    tables: dict[str, xr.Dataset]
    absent: dict[str, str]

    @property
    def note(self) -> str | None:
        """That no sink is of note, where the overview says so."""
        return counts.note(self.tables["overview"]) if "overview" in self.tables else None

    def to_dict(self) -> dict[str, Any]:
        """Strictly JSON-able: NaN is null, a table is its coordinates and nested lists."""
        return {
            "rule": plain(self.rule),
            "group": self.group,
            "model": plain(self.model),
            "samples": self.samples,
            "skipped": self.skipped,
            "note": self.note,
            "tables": {name: table_to_dict(table) for name, table in self.tables.items()},
            "absent": dict(self.absent),
        }


def summarise(
    samples: Iterable[xr.Dataset], rule: SinkRule, group: str = "all", *, tables: Sequence[str] | None = None
) -> SinkReport:
    """The named `tables` (all without it) over `samples`, with `rule` on the attention paid by `group` of queries.

    Raises `UserError` for an unknown table, a group that was not recorded, a rule that can never fire, samples of
    different models, or no sample at all.
    """
    running = _Running({name: TABLES.find(name) for name in (tables or TABLES)}, rule, group)
    for sample in samples:
        running.take(sample)
    return running.report()


@dataclass
class _Running:
    """The sums so far."""

    wanted: dict[str, Table]
    rule: SinkRule
    group: str
    sums: dict[str, xr.Dataset] = field(default_factory=dict)
    counted: dict[str, int] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    vocabulary: Vocabulary = field(default_factory=Vocabulary)
    identity: Mapping[str, Any] | None = None
    model: dict[str, Any] = field(default_factory=dict)
    samples: int = 0
    skipped: int = 0

    def take(self, sample: xr.Dataset) -> None:
        if sample.sizes.get("step", 0) == 0:
            self.skipped += 1
            return
        self.identity = require_same_model(sample, self.identity)
        self.model = self.model or dict(model_attributes(sample))
        if self.group != "all":
            group_atoms(sample, self.group)  # raises where it was never recorded
        view = View(sample, self.rule, self.group, self.wanted)
        try:
            if not view.exists.any():
                self.skipped += 1
                return
            self.vocabulary.learn(sample)
            self.samples += 1
            for name, table in self.wanted.items():
                self._add(name, table, view)
        except UserError as error:
            raise UserError(f"sample {sample.attrs.get('id')!r}: {error}") from error

    def _add(self, name: str, table: Table, view: View) -> None:
        reason = table.missing(view)
        if reason is not None:
            self.absent.setdefault(name, reason)
            return
        sums = table.measure(view).compute()
        sums.attrs = {}
        self.sums[name] = add_sums(self.sums[name], sums) if name in self.sums else sums
        self.counted[name] = self.counted.get(name, 0) + 1

    def report(self) -> SinkReport:
        if self.samples == 0:
            raise NoQueriesError(
                f"no sample has a recorded step with queries {self.group!r} ({self.skipped} looked at): "
                "wait for the recording, or choose another group"
            )
        tables = {}
        for name in self.sums:
            finished = self.wanted[name].finish(self.sums[name], self.vocabulary)
            made_by = {"group": self.group, **self.wanted[name].stated(self.rule), "samples": self.counted[name]}
            tables[name] = finished.assign_attrs(about=self.wanted[name].about, **made_by)
        ordered = {name: tables[name] for name in self.wanted if name in tables}
        absent = {name: reason for name, reason in self.absent.items() if name not in tables}
        return SinkReport(
            rule=self.rule.settings(),
            group=self.group,
            model=self.model,
            samples=self.samples,
            skipped=self.skipped,
            tables=ordered,
            absent=absent,
        )


def table_to_dict(table: xr.Dataset) -> dict[str, Any]:
    """`{"attrs": ..., "coords": {dim: labels}, "data": {variable: {"dims": [...], "values": nested lists}}}`."""
    return {
        "attrs": plain(dict(table.attrs)),
        "coords": {str(dim): plain(table[dim].values) for dim in table.dims},
        "data": {
            str(name): {"dims": [str(dim) for dim in values.dims], "values": plain(values.values)}
            for name, values in table.data_vars.items()
        },
    }


def table_rows(table: xr.Dataset) -> list[dict[str, Any]]:
    """One dict for every combination of labels, labels first; variables repeat along dims they lack; NaN is None."""
    dims = [str(dim) for dim in table.dims]
    labels = [plain(table[dim].values) for dim in dims]
    columns = {
        str(name): plain(values.broadcast_like(table).transpose(*dims).values.ravel()) for name, values in table.items()
    }
    cells = [dict(zip(dims, combination, strict=True)) for combination in product(*labels)]
    return [cell | {name: column[index] for name, column in columns.items()} for index, cell in enumerate(cells)]


def plain(value: Any) -> Any:
    """Numbers, strings, lists and dicts only; NaN and infinities as None."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, list | tuple | frozenset | set):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
