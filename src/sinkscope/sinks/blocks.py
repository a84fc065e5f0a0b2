"""Work through a long recording a few steps at a time, in float64.

A recording of 128 steps, 32 layers, 32 heads and 165 positions holds 21.6 million numbers: as float64 that is 173 MB an
array, and one expression makes several. `by_step_blocks` reads, widens and reduces a slice of the steps and copies the
result into its place, so a sample that lies in a store is never in memory whole, and its results are there once.

Cost: one pass over the data and one slice of about 16 MB a temporary array.
Where it misleads: the function sees only its slice, so whatever looks from one step to the next must not go through
here.
"""

from collections.abc import Callable, Hashable, Iterator
from itertools import chain
from typing import TypeVar

import numpy as np
import xarray as xr

Labelled = TypeVar("Labelled", xr.DataArray, xr.Dataset)
Result = TypeVar("Result", xr.DataArray, xr.Dataset)

CELLS = 2**21


def step_slices(steps: int, cells_per_step: int, cells: int = CELLS, together: int = 1) -> Iterator[slice]:
    """Slices that cover `steps` steps, each of about `cells` numbers and never of less than one step.

    together: steps in a chunk of the store; slices end where a chunk does, if a slice can hold one.
    """
    length = max(1, cells // max(1, cells_per_step))
    length -= length % together if length >= together else 0
    for start in range(0, steps, length):
        yield slice(start, min(start + length, steps))


def by_step_blocks(function: Callable[[Labelled], Result], data: Labelled, cells: int | None = None) -> Result:
    """`function` of `data`, slice of steps by slice of steps, its floating numbers as float64; joined along `step`.

    Without a dim `step` (or with no step at all) the function is called once with everything.
    """
    steps: int = data.sizes.get("step", 0)
    if steps == 0:
        return function(widened(data))
    slices: list[slice] = [*step_slices(steps, _cells_per_step(data), cells or CELLS, _stored_together(data))]
    if len(slices) == 1:
        return function(widened(data))
    found = (function(widened(data.isel(step=some))) for some in slices)
    return _joined(found, slices, data.coords.get("step"))


def _joined(parts: Iterator[Result], slices: list[slice], labels: xr.DataArray | None) -> Result:
    """Every part is copied into its place as it comes, so that memory holds the whole once."""
    first = next(parts)
    whole = first.isel(step=np.zeros(slices[-1].stop, dtype=np.int64)).drop_vars("step", errors="ignore")
    places = _by_step(whole)
    for some, part in zip(slices, chain([first], parts), strict=True):
        for name, values in _by_step(part.drop_vars("step", errors="ignore")).items():
            assert values.dtype == places[name].dtype, name
            places[name][{"step": some}] = values
    return whole if labels is None else whole.assign_coords(step=labels)


def _by_step(data: xr.DataArray | xr.Dataset) -> dict[Hashable, xr.Variable]:
    """The variables that have the dim `step`; those of an array are itself, under None, and its coordinates."""
    found: dict[Hashable, xr.Variable] = {name: one.variable for name, one in data.coords.items()}
    found.update(data.variables if isinstance(data, xr.Dataset) else {None: data.variable})
    return {name: one for name, one in found.items() if "step" in one.dims}


def widened(data: Labelled) -> Labelled:
    """The same data in memory, float16 and float32 as float64; whole numbers and booleans stay as they are."""
    return data.map(_widen) if isinstance(data, xr.Dataset) else _widen(data)


def _widen(array: xr.DataArray) -> xr.DataArray:
    return array.astype(np.float64, copy=False) if np.issubdtype(array.dtype, np.floating) else array.compute()


def _stored_together(data: xr.DataArray | xr.Dataset) -> int:
    """Steps in a chunk of the store that the largest array lies in."""
    arrays = [data] if isinstance(data, xr.DataArray) else list(data.data_vars.values())
    largest = max((array for array in arrays if "step" in array.dims), key=lambda array: array.size)
    chunks = largest.encoding.get("chunks")
    return int(chunks[largest.dims.index("step")]) if chunks and len(chunks) == largest.ndim else 1


def _cells_per_step(data: xr.DataArray | xr.Dataset) -> int:
    arrays = data.data_vars.values() if isinstance(data, xr.Dataset) else [data]
    return max((array.size // max(1, array.sizes.get("step", 1)) for array in arrays), default=1)
