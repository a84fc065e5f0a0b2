"""Which tokens hold the sinks, beside how often each token stands on the canvas at all (2510.15731, Table 2).

    sink_tokens(sample)                    # the token under the top sink of every step
    sink_tokens(sample, sinks)             # the tokens under all sinks that a rule found
    sink_classes(sample, sinks)

Canvas means what the model saw at that step, so [MASK] counts as a token. A frequency says little alone: in the first
steps nearly every position holds [MASK]. Each row therefore has its base rate, the share of (step, existing position)
cells that held the token, and lift = frequency / base rate.

Weights: without `sinks`, each step counts once (`per="step"`: the peak of the mean over layers and heads), or each
(step, layer), or each (step, layer, head). With `sinks`, every sink counts once, so steps with many sinks weigh more,
while the base rate weighs steps by their positions.
"""

import numpy as np
import xarray as xr

from sinkscope.errors import UserError
from sinkscope.sinks.lexicon import CLASSES, Lexicon
from sinkscope.sinks.scales import WITHIN_A_PASS, anywhere, key_exists
from sinkscope.sinks.where import sink_positions

PER = {"step": "overall", "layer": "by_layer", "head": "by_head"}


def sink_tokens(
    sample: xr.Dataset,
    sinks: xr.DataArray | None = None,
    *,
    received: xr.DataArray | None = None,
    per: str = "step",
) -> xr.Dataset:
    """Frequency, base rate and lift of every token, `(token,)`, most frequent first; `token` is the id, `text` its
    text.

    Raises `UserError` when the sample has no canvas.
    """
    counts = token_counts(sample, sink_cells(sample, sinks, received=received, per=per))
    return token_table(counts, Lexicon.of(sample))


def sink_classes(
    sample: xr.Dataset,
    sinks: xr.DataArray | None = None,
    *,
    received: xr.DataArray | None = None,
    per: str = "step",
) -> xr.Dataset:
    """Frequency, base rate and lift of every token class, `(token_class,)`; classes part the cells (`lexicon.py`)."""
    return with_rates(class_counts(sample, sink_cells(sample, sinks, received=received, per=per)))


def sink_cells(
    sample: xr.Dataset,
    sinks: xr.DataArray | None = None,
    *,
    received: xr.DataArray | None = None,
    per: str = "step",
) -> xr.Dataset:
    """How many sinks every cell holds and which cells exist: `sinks` and `exists`, both `(step, position)`."""
    if sinks is not None:
        held = sinks.drop_vars("exists").sum([dim for dim in WITHIN_A_PASS if dim in sinks.dims])
        return xr.Dataset({"sinks": held, "exists": anywhere(sinks["exists"].drop_vars("exists"))})
    if per not in PER:
        raise UserError(f"top sinks are counted per step, layer or head, got {per!r}")
    array = sample["received"] if received is None else received
    return top_cells(sink_positions(sample, received=array), key_exists(array), PER[per])


def top_cells(positions: xr.Dataset, exists: xr.DataArray, name: str) -> xr.Dataset:
    """As `sink_cells`, from variable `name` of `sink_positions`: "overall", "by_layer" or "by_head"."""
    if name not in positions:
        raise UserError(
            f"this received attention has no {name.removeprefix('by_')}s to count top sinks by: choose another `per`"
        )
    top, exists = positions[name], anywhere(exists)
    rest = [dim for dim in WITHIN_A_PASS if dim in top.dims]
    held = (top == exists["position"]).sum(rest)
    return xr.Dataset({"sinks": held.transpose(*exists.dims), "exists": exists})


def token_counts(sample: xr.Dataset, cells: xr.Dataset) -> xr.Dataset:
    """Sums, additive over samples: `sinks` and `cells` of every token id on the canvas, `(token,)`."""
    canvas = _canvas(sample, cells)
    exists = cells["exists"].transpose(*canvas.dims).values
    ids, where = np.unique(canvas.values[exists], return_inverse=True)
    held = cells["sinks"].transpose(*canvas.dims).values[exists]
    return _counts("token", ids.astype(np.int64), where, held)


def class_counts(sample: xr.Dataset, cells: xr.Dataset) -> xr.Dataset:
    """Sums, additive over samples: `sinks` and `cells` of every token class, `(token_class,)`."""
    kinds = Lexicon.of(sample).classes(_canvas(sample, cells))
    exists = cells["exists"].transpose(*kinds.dims).values
    held = cells["sinks"].transpose(*kinds.dims).values[exists]
    return _counts("token_class", np.array(CLASSES), kinds.values[exists], held)


def token_table(counts: xr.Dataset, lexicon: Lexicon) -> xr.Dataset:
    """Rates of `token_counts`, most frequent first (then by base rate, then by id), with texts and classes."""
    table = with_rates(counts)
    order = np.lexsort((table["token"].values, -table["base_rate"].values, -table["frequency"].fillna(0).values))
    table = table.isel(token=order)
    ids = [int(token) for token in table["token"].values]
    texts = np.array([lexicon.text(token) for token in ids], dtype=object)
    kinds = np.array([lexicon.class_of(token) for token in ids], dtype=object)
    return table.assign(text=("token", texts), kind=("token", kinds))


def with_rates(counts: xr.Dataset) -> xr.Dataset:
    """`counts` with `frequency` (of sinks), `base_rate` (of cells) and `lift`; NaN without sinks or cells."""
    frequency = _share(counts["sinks"])
    base_rate = _share(counts["cells"])
    return counts.assign(frequency=frequency, base_rate=base_rate, lift=frequency / base_rate.where(base_rate > 0))


def _share(counts: xr.DataArray) -> xr.DataArray:
    total = counts.sum()
    return counts / total.where(total > 0)


def _counts(dim: str, labels: np.ndarray, where: np.ndarray, held: np.ndarray) -> xr.Dataset:
    sinks = np.bincount(where.ravel(), weights=held.ravel(), minlength=len(labels)).astype(np.int64)
    cells = np.bincount(where.ravel(), minlength=len(labels)).astype(np.int64)
    return xr.Dataset({"sinks": (dim, sinks), "cells": (dim, cells)}, coords={dim: labels})


def _canvas(sample: xr.Dataset, cells: xr.Dataset) -> xr.DataArray:
    if "canvas" not in sample:
        raise UserError("this sample has no canvas, so its sinks' tokens are unknown: record the trace with its canvas")
    return sample["canvas"].sel(step=cells["step"], position=cells["position"])
