"""Cells of grids and tables of sinks as one parquet file, for duckdb, polars and pandas.

    write_cells([Path("runs/grid")], Path("cells.parquet"))
    write_sinks([Path("runs/a.zarr")], Path("heads.parquet"), Excess(), table="heads", by_sample=True)

    select layer, head, avg(top_received) from 'heads.parquet' group by all

Columns have the names that `--json` and `table.csv` have, after `folder`, or `trace` and `sample`. Of traces, every
sample (or trace) is a row group that is written before the next is looked at. What is no number is null, as in JSON.
Units and settings are in the file's metadata under "sinkscope", as JSON, units also on each column.

Misleads: numbers of samples don't average to those of the trace, in which samples with more steps weigh more.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from io import RawIOBase
from itertools import chain, product
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xarray as xr

from sinkscope.errors import UserError, refusing
from sinkscope.files import write_whole
from sinkscope.grids import read_cells
from sinkscope.grids.lines import has_lines
from sinkscope.report.folders import cell_kind
from sinkscope.sinks import SinkRule, summarise
from sinkscope.sinks.tables.report import NoQueriesError
from sinkscope.trace import Trace, open_trace
from sinkscope.trace.reading import reading_values

UNITS: Mapping[str, str] = MappingProxyType(
    {
        "seconds": "s", "cache_bytes": "bytes", "peak_memory": "bytes", "tokens": "tokens",
        "tokens_per_second": "tokens/s", "snr": "dB", "symbols": "complex symbols", "bits": "bits",
        **dict.fromkeys(("camera", "server", "whole"), "operations"),
        **dict.fromkeys(("score", "difference", "gain"), "as the column unit says"),
        **dict.fromkeys(("difference_p", "gain_p"), "probability"),
        **dict.fromkeys(("keys_cut", "keys"), "keys"),
        **dict.fromkeys(("mass", "sink_mass", "cut_mass", "received", "top_received"), "share of attention"),
        "sinks": "sinks", "top_score": "fair shares", "steps": "steps", "steps_asked": "steps",
        **dict.fromkeys(
            ("position", "from_prompt_end", "top_position", "displacement", "distance_moved", "mean", "absolute",
             "mean_base", "absolute_base"),
            "positions",
        ),
        **dict.fromkeys(("mean_seen", "median_lifetime", "longest"), "steps"),
    }
)  # fmt: skip
"""Of columns; the ends of an interval have that of what it is of, and shares and ratios have none."""
_WHOLE = (
    "n draw draws models first_step last_step mask_seed drop_seed seed max_example_tokens window batch_size tokens "
    "prune_after block_length peak_memory seeds"
)
_TEXT = (
    "model task unit better keys masked masking nothing_masked dropped when detect detect_from how reference texts "
    "revision dtype device sinkscope torch transformers sionna pillow experiment scorer exceptions kept verdict cache "
    "way channel digital split"
)
_LISTS = MappingProxyType(
    {
        **dict.fromkeys(("layers", "heads", "lengths"), pa.list_(pa.int64())),
        **dict.fromkeys(("queries", "classes"), pa.list_(pa.string())), "depths": pa.list_(pa.float64()),
    }
)  # fmt: skip
"""Types that columns have where none of their values says so."""
_END = re.compile(r"_(low|high|least|most|mean|lowest|highest)$")


def are_cells(folders: Sequence[Path]) -> bool:
    """Whether these are folders of cells; traces if not. Raises `UserError` for both together."""
    which = [has_lines(folder) for folder in folders]
    if any(which) and not all(which):
        raise UserError(f"{folders[which.index(True)]} holds cells, {folders[which.index(False)]} none: name one kind")
    return all(which)


def write_cells(folders: Sequence[Path], file: Path) -> int:
    """All cells of the folders, which must be of one kind of grid; a row group a folder. Returns the number of rows.

    Raises `UserError` for folders without cells, of several kinds, and where the disk takes no more.
    """
    kinds = [cell_kind(folder) for folder in folders]
    if any(kind is not kinds[0] for kind in kinds):
        raise UserError(f"{folders[0]} holds cells of {kinds[0].form.what}, others do not: name one kind")
    of_folder = [
        [{"folder": str(folder), **one} for one in kind.records(read_cells(folder, kind.form))]
        for folder, kind in zip(folders, kinds, strict=True)
    ]
    every = list(chain(*of_folder))
    names = dict.fromkeys(name for one in every for name in one)
    schema = pa.schema([pa.field(name, _type(name, [one.get(name) for one in every])) for name in names])
    groups = (
        pa.table(
            {field.name: pa.array([_plain(one.get(field.name), field.type) for one in some], field.type)
             for field in schema},
            schema=schema,
        )
        for some in of_folder
    )  # fmt: skip
    return _write(file, schema, groups, {"cells": kinds[0].form.kind})


def write_sinks(
    paths: Sequence[Path], file: Path, rule: SinkRule, group: str = "all", *, table: str = "overview",
    by_sample: bool = False,
) -> int:  # fmt: skip
    """One table of sinks, of every trace, or of every sample of the traces that has such queries.

    Returns the number of rows. Raises `UserError` as `summarise` does, for a table that a trace can't fill, and where
    the disk takes no more.
    """
    streams = [_stream(open_trace(path), rule, group, table, by_sample) for path in paths]
    firsts = [next(stream, None) for stream in streams]
    there = [one for one in firsts if one is not None]
    if not there:
        raise UserError(f"no sample has a recorded step with queries {group!r}: choose another group")
    schema = pa.unify_schemas([one.schema for one in there], promote_options="permissive")
    groups = chain(*(chain([first], stream) for first, stream in zip(firsts, streams, strict=True) if first))
    stated = {"table": table, "group": group, "rule": rule.settings(), "by_sample": by_sample}
    return _write(file, schema.remove_metadata(), (_fitted(one, schema) for one in groups), stated)


def _stream(trace: Trace, rule: SinkRule, group: str, table: str, by_sample: bool) -> Iterator[Any]:
    """A table of every sample, one after the other, or one of all."""
    for ids in [[one] for one in trace.ids] if by_sample else [trace.ids]:
        with reading_values(trace.path):
            try:
                report = summarise((trace[one] for one in ids), rule, group, tables=[table])
            except NoQueriesError:
                if not by_sample:
                    raise
                continue
        if table not in report.tables:
            raise UserError(f"{trace.path} has no table {table}: {report.absent[table]}")
        names = {"trace": str(trace.path), **({"sample": ids[0]} if by_sample else {})}
        yield _rows(report.tables[table], names)


def _rows(table: xr.Dataset, names: Mapping[str, str]) -> Any:
    """One row for every combination of labels, as `table_rows` gives them, typed."""
    dims = [str(dim) for dim in table.dims]
    labels = [*zip(*product(*(table[dim].values.tolist() for dim in dims)), strict=True)] if dims else []
    columns = {dim: _column(np.array(some)) for dim, some in zip(dims, labels, strict=False)}
    columns |= {
        str(name): _column(one.broadcast_like(table).transpose(*dims).values.ravel()) for name, one in table.items()
    }
    count = len(next(iter(columns.values())))
    return pa.table({**{name: pa.array([text] * count) for name, text in names.items()}, **columns})


def _column(values: np.ndarray[Any, Any]) -> Any:
    """NaN and infinities are null, as they are in JSON."""
    if values.dtype.kind == "f":
        return pa.array(values.astype(np.float64), mask=~np.isfinite(values))
    return pa.array(values.tolist())


def _fitted(table: Any, schema: Any) -> Any:
    """With a null column for each that is lacking."""
    return pa.table(
        {
            field.name: table[field.name].cast(field.type) if field.name in table.column_names
            else pa.nulls(len(table), field.type)
            for field in schema
        }
    )  # fmt: skip


def _type(name: str, values: Iterable[Any]) -> Any:
    """Of a column of cells: what its values say, and where they don't what its name does."""
    kinds = {type(one) for one in values if one is not None}
    if name == "snr":
        return pa.float64()
    if list in kinds or (not kinds and name in _LISTS):
        inner = {type(one) for some in values if some for one in some}
        return pa.list_(_scalar(inner)) if inner else _LISTS.get(name, pa.list_(pa.string()))
    if kinds:
        return _scalar(kinds)
    if name in _TEXT.split() or name.endswith("unsure"):
        return pa.string()
    return pa.int64() if name in _WHOLE.split() else pa.float64()


def _scalar(kinds: set[type]) -> Any:
    if str in kinds:
        return pa.string()
    return pa.bool_() if kinds == {bool} else pa.int64() if kinds == {int} else pa.float64()


def _plain(value: Any, kind: Any) -> Any:
    """As the column has it: JSON's "inf" is one, and a number among texts a text."""
    if value is None:
        return None
    return float(value) if pa.types.is_floating(kind) else str(value) if pa.types.is_string(kind) else value


def _write(file: Path, schema: Any, groups: Iterable[Any], stated: Mapping[str, Any]) -> int:
    """Every table as a row group of its own; returns the number of rows."""
    units = {name: unit for name in schema.names if (unit := UNITS.get(_END.sub("", name), UNITS.get(name)))}
    units |= {name: UNITS["score"] for name in ("low", "high") if name in schema.names}
    told = pa.schema([one.with_metadata({"unit": units[one.name]}) if one.name in units else one for one in schema])
    told = told.with_metadata({"sinkscope": json.dumps({**stated, "units": units})})
    rows = 0

    def parts() -> Iterator[bytes]:
        nonlocal rows
        sink = _Sink()
        with pq.ParquetWriter(pa.PythonFile(sink, mode="w"), told, compression="zstd") as writer:
            for group in groups:
                with refusing(f"{file} can't hold what comes", "export one trace or folder at a time"):
                    writer.write_table(group.cast(told))
                rows += len(group)
                yield sink.taken()
        yield sink.taken()

    write_whole(file, parts())
    return rows


class _Sink(RawIOBase):
    """What was written since it was last taken."""

    def __init__(self) -> None:
        self._new = bytearray()
        self._at = 0

    def writable(self) -> bool:
        return True

    def write(self, content: Any) -> int:
        self._new += content
        self._at += len(content)
        return len(content)

    def tell(self) -> int:
        return self._at

    def taken(self) -> bytes:
        """And forgotten."""
        new, self._new = bytes(self._new), bytearray()
        return new
