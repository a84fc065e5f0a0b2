"""Writing one sample of a trace, step by step.

Steps wait in memory until they fill a chunk, are written as whole chunks, and only then does the commit marker
(attribute `steps`, with the shapes beside it) move. Whatever lies beyond the marker is never shown. Cost: at most 16
steps (or 6 MB) of every variable in memory, and per step of a large model about 5 ms of compression.

Where it misleads: a step that was appended is not on disk before its chunk is full or the sample is finished.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import zarr
import zarr.abc.store
from numpy.typing import ArrayLike, NDArray
from zarr.codecs import BloscCodec

from sinkscope.trace.groups import write_group
from sinkscope.trace.layout import Coordinate, Layout, Variable
from sinkscope.trace.staging import Stage

# Measured on softmax (sd 2) that is rounded: level 6 leaves 57 % in 0.18 s a chunk, level 5 61 % in as long, level 7 no
# less in three times as long; a bit shuffle is 10 % larger.
_CODEC = BloscCodec(cname="zstd", clevel=6, shuffle="shuffle")
# One flat file a chunk: with "/" every chunk would cost a folder for each dimension.
_KEYS: dict[str, Any] = {"name": "default", "configuration": {"separator": "."}}
# A chunk of nothing but fill is a file too, so that a file that is not there is one that was lost.
_EVERY_CHUNK: Any = {"write_empty_chunks": True}
# Dimensions that grow with an autoregressive model's steps; a row may be shorter than planned.
_GROWING = frozenset({"position", "query"})


class SampleWriter:
    """Writes one sample; made by `TraceStore.sample`, which says what the arguments are.

    guard: context in which everything is written; turns a full disk into a UserError.
    completed: called once the sample is safely complete.
    """

    def __init__(
        self,
        folder: Path,
        layout: Layout,
        attributes: Mapping[str, Any],
        guard: Callable[[], AbstractContextManager[None]],
        completed: Callable[[], None],
    ) -> None:
        self._folder = folder
        self._stage = Stage(folder)
        self._layout = layout
        self._guard = guard
        self._completed = completed
        self._attributes = {**attributes, "steps": 0, "complete": False}
        self._sizes = {axis.dim: len(axis.values) for axis in layout.coordinates}
        self._arrays: dict[str, zarr.Array[Any]] = {}
        self._metadata: dict[str, dict[str, Any]] = {}
        self._buffers = {one.name: _empty(one, layout.chunk_steps) for one in layout.stepwise}
        self._waiting = 0
        self._mapped = 0
        with guard():
            for axis in layout.coordinates:
                self._keep(axis.name, _write_coordinate(self._stage.store(axis.name), axis))
            for variable in (*layout.stepwise, *layout.mapped):
                self._keep(variable.name, _create(self._stage.store(variable.name), variable))
            self._commit(self._attributes)

    @property
    def steps(self) -> int:
        """Steps that are safely on disk."""
        return int(self._attributes["steps"])

    def append(self, step: Mapping[str, ArrayLike]) -> None:
        """Add one step: an array for every stepwise variable, without its first dimension.

        At a step that the coordinate `map_step` names, every mapped variable is needed too. Arrays may be shorter
        than planned along `position` and `query`; the rest keeps the variable's fill. Raises ValueError for a missing
        or surplus variable, a wrong shape or type, or a step too many; UserError where the disk does not take it.
        """
        number = self.steps + self._waiting
        mapped = self._layout.mapped if number in self._layout.map_steps else ()
        _check_names(step, (*self._layout.stepwise, *mapped))
        if number >= self._layout.max_steps:
            raise ValueError(f"the sample was laid out for {self._layout.max_steps} steps, this is one more")
        rows = {one.name: _checked_row(one, step[one.name]) for one in (*self._layout.stepwise, *mapped)}
        for variable in self._layout.stepwise:
            row = rows[variable.name]
            self._buffers[variable.name][_place(self._waiting, row)] = row
        with self._guard():
            for variable in mapped:
                row = rows[variable.name]
                self._arrays[variable.name][_place(self._mapped, row)] = row[None]
        self._mapped += len(mapped) > 0
        self._waiting += 1
        if self._waiting == self._layout.chunk_steps:
            self.flush()

    def flush(self) -> None:
        """Write the steps that wait for their chunk to fill."""
        with self._guard():
            self._flush()

    def finish(
        self, static: Mapping[str, ArrayLike], attrs: Mapping[str, Any], *, positions: int | None = None
    ) -> None:
        """Write what is left, cut all arrays to the steps taken and to `positions`, and mark the sample complete.

        static: every static variable of the layout, at its final size.
        attrs: attributes known only now, added to those given at the start.
        """
        _check_names(static, self._layout.static)
        final = positions if positions is not None else self._sizes["position"]
        if not 0 < final <= self._sizes["position"]:
            raise ValueError(f"the sample was laid out for {self._sizes['position']} positions, asked to keep {final}")
        sizes = {**self._sizes, **{dim: final for dim in _GROWING if dim in self._sizes}}
        rows = {one.name: _static_row(one, static[one.name], sizes) for one in self._layout.static}
        with self._guard():
            self._flush()
            self._sizes = sizes
            for variable in self._layout.static:
                row = rows[variable.name]
                array = _create(self._stage.store(variable.name), replace(variable, shape=row.shape))
                array[...] = row
                self._keep(variable.name, array)
            shapes = self._shapes(self.steps)
            for name, array in self._arrays.items():
                if array.shape != shapes[name]:
                    array.resize(shapes[name])
            self._commit({**self._attributes, **attrs, "steps": self.steps, "complete": True})
        self._completed()

    def _keep(self, name: str, array: zarr.Array[Any]) -> None:
        self._arrays[name] = array
        self._metadata[name] = self._stage.metadata(name)

    def _flush(self) -> None:
        start, count = self.steps, self._waiting
        if count == 0:
            return
        for variable in self._layout.stepwise:
            steps = self._buffers[variable.name][:count]
            self._arrays[variable.name][start : start + count] = rounded(steps) if variable.rounded else steps
        self._commit({**self._attributes, "steps": start + count})
        self._waiting = 0
        for variable in self._layout.stepwise:
            self._buffers[variable.name][...] = variable.fill

    def _shapes(self, steps: int) -> dict[str, tuple[int, ...]]:
        """Shape of every array when the marker stands at `steps`."""
        mapped = sum(step < steps for step in self._layout.map_steps)
        sizes = {**self._sizes, "step": steps, "map_step": mapped}
        return {name: tuple(sizes[dim] for dim in one["dimension_names"]) for name, one in self._metadata.items()}

    def _commit(self, attributes: dict[str, Any]) -> None:
        """Move the marker: attributes and shapes in one atomic replacement, after all that it leads to."""
        self._stage.send()
        shapes = self._shapes(attributes["steps"])
        arrays = {name: {**one, "shape": list(shapes[name])} for name, one in self._metadata.items()}
        write_group(self._folder, attributes, arrays)
        self._stage.sweep()
        self._attributes = attributes


def _empty(variable: Variable, steps: int) -> NDArray[Any]:
    return np.full((steps, *variable.shape[1:]), variable.fill, dtype=variable.dtype)


def _place(number: int, row: NDArray[Any]) -> tuple[slice, ...]:
    """Where a row, which may be shorter than planned, goes in an array of rows."""
    return (slice(number, number + 1), *(slice(0, size) for size in row.shape))


def _create(store: zarr.abc.store.Store, variable: Variable) -> zarr.Array[Any]:
    return zarr.create_array(
        store,
        shape=variable.shape,
        chunks=variable.chunks,
        dtype=variable.dtype,
        fill_value=variable.fill,
        compressors=_CODEC,
        chunk_key_encoding=_KEYS,
        dimension_names=variable.dims,
        attributes={"long_name": variable.about},
        config=_EVERY_CHUNK,
    )


def _write_coordinate(store: zarr.abc.store.Store, axis: Coordinate) -> zarr.Array[Any]:
    labels = np.array(axis.values, dtype=np.dtypes.StringDType() if isinstance(axis.values[0], str) else np.int32)
    return zarr.create_array(
        store,
        data=labels,
        chunks=labels.shape,
        compressors=None,
        chunk_key_encoding=_KEYS,
        dimension_names=(axis.dim,),
        config=_EVERY_CHUNK,
    )


def _check_names(given: Mapping[str, ArrayLike], wanted: tuple[Variable, ...]) -> None:
    names = {variable.name for variable in wanted}
    if given.keys() != names:
        missing, surplus = sorted(names - given.keys()), sorted(given.keys() - names)
        raise ValueError(f"a step or sample must hold what was laid out: missing {missing}, surplus {surplus}")


def _checked_row(variable: Variable, values: ArrayLike) -> NDArray[Any]:
    """The values as an array of the variable's type, its shape compared with the plan."""
    row = np.asarray(values)
    moving = variable.dims[0] in ("step", "map_step")
    dims, shape = (variable.dims[1:], variable.shape[1:]) if moving else (variable.dims, variable.shape)
    fits = len(row.shape) == len(shape) and all(
        got == size or (dim in _GROWING and got < size) for dim, got, size in zip(dims, row.shape, shape, strict=True)
    )
    if not fits:
        raise ValueError(f"{variable.name} must have the shape {shape} {dims}, got {row.shape}")
    if not np.can_cast(row.dtype, variable.dtype, "same_kind"):
        raise ValueError(f"{variable.name} must hold {variable.dtype}, got {row.dtype}")
    return row.astype(variable.dtype, copy=False)


def _static_row(variable: Variable, values: ArrayLike, sizes: Mapping[str, int]) -> NDArray[Any]:
    """The values of a static variable, which must have its final size."""
    row = _checked_row(variable, values)
    wanted = tuple(sizes[dim] for dim in variable.dims)
    if row.shape != wanted:
        raise ValueError(f"{variable.name} must have the shape {wanted} {variable.dims}, got {row.shape}")
    return row


TOP = 8
"""So many of a row's highest numbers are never rounded."""
ABOVE = 16
BELOW = 12
"""Significant bits of numbers from the fair share up, and below it."""
NEAR = 2.0**-10
"""Numbers that differ from the fair share by this share of it are not rounded. It is more than rounding moves any."""


def rounded(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Attention `(..., position)` without the bits that no rule could tell; NaN, where no key is, stays NaN.

    Every rule compares within a row: with the row's mean (the fair share), with a limit above it, or with the row's
    highest. So a number keeps all its 24 bits where it is at least twice the fair share, among the row's `TOP` highest,
    or next to the fair share; `ABOVE` bits between once and twice the fair share; `BELOW` bits below. What rounding
    takes from a row is given back to one of its small numbers, so the row's sum, and with it the fair share, stays.
    Bits that are zero compress to nothing.

    Where it misleads: a limit *below* the fair share, or the order of keys that receive less than it, is decided to 12
    bits; so is the deviation of a row, and a z-score within a thousandth of its limit may fall on the other side.
    """
    if values.shape[-1] <= TOP:
        return values
    missing = np.isnan(values)
    known = np.where(missing, np.float32(0), values)
    keys = np.maximum(1, (~missing).sum(-1, keepdims=True))
    fair = (known.sum(-1, keepdims=True, dtype=np.float64) / keys).astype(np.float32)
    top = np.partition(known, -TOP, axis=-1)[..., -TOP, None]
    kept = (known >= 2 * fair) | (known >= top) | (abs(known - fair) <= np.float32(NEAR) * fair)
    # A row without small numbers has none that could take what rounding leaves over.
    kept |= ~(~missing & (known < fair / 2)).any(-1, keepdims=True)
    result = np.where(kept, known, np.where(known >= fair, _to_bits(known, ABOVE), _to_bits(known, BELOW)))
    _give_back(known, result, fair, missing)
    return np.where(missing, np.float32(np.nan), result)


def _to_bits(values: NDArray[np.float32], bits: int) -> NDArray[np.float32]:
    """The nearest numbers of so many significant bits, ties to even; values of at least 0."""
    drop = np.uint32(24 - bits)
    whole = values.view(np.uint32)
    last = (whole >> drop) & np.uint32(1)
    nearest: NDArray[np.uint32] = (whole + np.uint32((1 << (24 - bits - 1)) - 1) + last) >> drop << drop
    return nearest.view(np.float32)


def _give_back(
    exact: NDArray[np.float32], result: NDArray[np.float32], fair: NDArray[np.float32], missing: NDArray[np.bool_]
) -> None:
    """Add what a row lost to its highest number below half the fair share; in place. A row without one lost nothing."""
    lost = (exact.astype(np.float64) - result).sum(-1, keepdims=True)
    at = np.where(missing | (result >= fair / 2), np.float32(-1), result).argmax(-1, keepdims=True)
    taker = np.take_along_axis(result, at, -1)
    np.put_along_axis(result, at, np.maximum(0, taker + lost).astype(np.float32), -1)
