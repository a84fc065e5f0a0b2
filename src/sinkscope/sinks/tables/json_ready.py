"""Labelled tables as plain values: strict JSON (NaN and infinities become null), and rows for a printed table."""

import math
from itertools import product
from typing import Any

import numpy as np
import xarray as xr

Rows = list[dict[str, Any]]


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


def table_rows(table: xr.Dataset) -> Rows:
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
