"""What stands where the sinks are: tokens, norms of keys and values, and how far masks and block edges are.

    sink_tokens(sample)                    # the token under the top sink of every step (2510.15731, Table 2)
    sink_tokens(sample, sinks)             # the tokens under all sinks that a rule found
    sink_classes(sample, sinks)
    norm_ratio(sample, sinks, "value")     # norms at sinks against elsewhere (value-norm ratio: 2601.19657)
    sink_distances(sample, sinks)          # from what is still masked and from the current block

*Tokens.* Canvas means what the model saw at that step, so [MASK] counts as a token. A frequency says little alone: in
the first steps nearly every position holds [MASK]. Each row therefore has its base rate, the share of (step, existing
position) cells that held the token, and lift = frequency / base rate. Without `sinks`, each step counts once
(`per="step"`: the peak of the mean over layers and heads), or each (step, layer), or each (step, layer, head). With
`sinks`, every sink counts once, so steps with many sinks weigh more, while the base rate weighs steps by their
positions.

*Norms.* Sinks are known for small values: attention parked there changes little. A ratio below 1 says so. With
grouped-query attention a key/value head serves several query heads, so its norm counts once for each of them, as a sink
where that head sees one and among the others where not.

*Distances* are signed, position of the sink minus position of the mark, in tokens: positive means that the sink lies to
the right of it.

- `nearest_masked`: the nearest masked position (0 on a masked position; of two equally near, the left one)
- `frontier`: the leftmost masked position, so negative means in finished text
- `block_start`, `block_stop`: the first position of the current block, and the first after it

The first two are NaN at a step that has no mask left; such steps count in no mean. The mask is the model's mask token
on the canvas; without one (autoregressive models) only the block's edges remain.

Where it misleads: the ratio of norms is of means over all (step, head, position) of a layer, so steps and heads with
many sinks weigh more; with one sink a row it compares one key with the average of many. Distances of any position
shrink as text fills up, so each mean stands beside the same mean over all existing positions (`..._base`).
"""

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from sinkscope.errors import UserError
from sinkscope.sinks.blocks import by_step_blocks
from sinkscope.sinks.find import sink_positions
from sinkscope.sinks.lexicon import CLASSES, Lexicon
from sinkscope.sinks.scales import WITHIN_A_PASS, anywhere, key_exists, own_received

PER = {"step": "overall", "layer": "by_layer", "head": "by_head"}
EDGES = ("block_start", "block_stop")
Norm = Literal["key", "value"]


def sink_tokens(
    sample: xr.Dataset, sinks: xr.DataArray | None = None, *, received: xr.DataArray | None = None, per: str = "step"
) -> xr.Dataset:
    """Frequency, base rate and lift of every token, `(token,)`, most frequent first; `token` is the id, `text` its
    text.

    Raises `UserError` when the sample has no canvas.
    """
    counts = token_counts(sample, sink_cells(sample, sinks, received=received, per=per))
    return token_table(counts, Lexicon.of(sample))


def sink_classes(
    sample: xr.Dataset, sinks: xr.DataArray | None = None, *, received: xr.DataArray | None = None, per: str = "step"
) -> xr.Dataset:
    """Frequency, base rate and lift of every token class, `(token_class,)`; classes part the cells (`lexicon.py`)."""
    return with_rates(class_counts(sample, sink_cells(sample, sinks, received=received, per=per)))


def sink_cells(
    sample: xr.Dataset, sinks: xr.DataArray | None = None, *, received: xr.DataArray | None = None, per: str = "step"
) -> xr.Dataset:
    """How many sinks every cell holds and which cells exist: `sinks` and `exists`, both `(step, position)`."""
    if sinks is not None:
        held = sinks.drop_vars("exists").sum([dim for dim in WITHIN_A_PASS if dim in sinks.dims])
        return xr.Dataset({"sinks": held, "exists": anywhere(sinks["exists"].drop_vars("exists"))})
    if per not in PER:
        raise UserError(f"top sinks are counted per step, layer or head, got {per!r}")
    array = own_received(sample) if received is None else received
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
    return with_texts(table.isel(token=order), lexicon)


def with_texts(table: xr.Dataset, lexicon: Lexicon) -> xr.Dataset:
    """A table with the dim `token`, and the `text` and `kind` (class) of each."""
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


def norm_ratio(sample: xr.Dataset, sinks: xr.DataArray, of: Norm = "value") -> xr.Dataset:
    """Mean norm `at_sinks`, at `others`, and their `ratio`, `(layer,)`; NaN where a layer has no sink.

    Raises `UserError` when the norms were not recorded.
    """
    table = norm_means(norm_sums(sample, sinks, of))
    table.attrs = {**sinks.attrs, "norm": of}
    return table


def norm_sums(sample: xr.Dataset, sinks: xr.DataArray, of: Norm) -> xr.Dataset:
    """The sums behind `norm_ratio`, `(layer,)`, additive over samples."""
    name = f"{of}_norm"
    if name not in sample:
        raise UserError(f"this trace has no {of} norms: record it again with Recording(norms=True)")
    norms = sample[name].sel(step=sinks["step"].values, position=sinks["position"].values)
    one = xr.ones_like(sinks.isel(step=0, position=0, drop=True), dtype=np.int64)
    # How many query heads count a key head's norm.
    shared = over_kv_heads(one, norms, np.sum).drop_vars("exists", errors="ignore") if "head" in sinks.dims else 1
    both = xr.Dataset(
        {"sinks": sinks.drop_vars("exists"), "exists": anywhere(sinks["exists"].drop_vars("exists")), "norm": norms}
    )
    per_step = by_step_blocks(lambda part: _norm_sums(part, shared), both)
    return per_step.sum("step")


def norm_means(sums: xr.Dataset) -> xr.Dataset:
    """Means and ratio from `norm_sums`."""
    at_sinks = sums["sink_norm"] / sums["sinks"].where(sums["sinks"] > 0)
    others = sums["other_norm"] / sums["others"].where(sums["others"] > 0)
    return xr.Dataset({"at_sinks": at_sinks, "others": others, "ratio": at_sinks / others.where(others > 0)})


def _norm_sums(part: xr.Dataset, shared: xr.DataArray | int) -> xr.Dataset:
    norm = part["norm"]
    held = part["sinks"].astype(np.int64)
    if "head" in held.dims:
        held = over_kv_heads(held, norm, np.sum)
    known = norm.notnull() & part["exists"]
    held = held.where(known, 0)
    rest = (shared - held).where(known, 0)
    norm = norm.fillna(0.0)
    cells = ["kv_head", "position"]
    sums = {"sink_norm": norm * held, "other_norm": norm * rest, "sinks": held, "others": rest}
    return xr.Dataset({name: values.sum(cells) for name, values in sums.items()})


def over_kv_heads(values: xr.DataArray, norm: xr.DataArray, how: Callable[..., Any]) -> xr.DataArray:
    """Values of query heads `(..., head, ...)` gathered by the key head that serves them, with the labels of `norm`.

    how: `np.mean` or `np.sum`. Raises `UserError` where heads do not divide over key heads.
    """
    if "layer_heads" not in values.coords or "layer" not in values.dims:
        return _over_kv_heads(values, norm["kv_head"].values, how)
    each = zip(values["layer"].values, values["layer_heads"].values, norm["layer_kv_heads"].values, strict=True)
    layers = [
        _over_kv_heads(values.sel(layer=[layer], head=slice(heads - 1)), norm["kv_head"].values[:kv_heads], how)
        for layer, heads, kv_heads in each
    ]
    # A key head that a layer lacks is NaN; of counts it has none.
    missing = np.nan if np.issubdtype(values.dtype, np.floating) else 0
    return xr.concat(layers, "layer", join="outer", fill_value=missing).transpose(*layers[0].dims)


def _over_kv_heads(values: xr.DataArray, kv_heads: NDArray[np.int64], how: Callable[..., Any]) -> xr.DataArray:
    heads, groups = values.sizes["head"], len(kv_heads)
    if heads % groups:
        raise UserError(f"{heads} query heads do not divide over {groups} key heads: are they of one sample?")
    bare = values.drop_vars("head", errors="ignore")
    gathered: xr.DataArray = bare.coarsen(head=heads // groups).reduce(how).rename(head="kv_head")
    return gathered.assign_coords(kv_head=kv_heads)


def distance_maps(sample: xr.Dataset) -> xr.Dataset:
    """The signed distance of every position at every step to each mark that is recorded, `(step, position)`.

    Raises `UserError` when neither masks nor blocks are recorded.
    """
    maps = {}
    mask = Lexicon.of(sample).mask_token_id
    if mask is not None and "canvas" in sample:
        canvas = sample["canvas"].transpose("step", "position")
        near, frontier = mask_distances(canvas.values == mask, canvas["position"].values)
        maps = {"nearest_masked": canvas.copy(data=near), "frontier": canvas.copy(data=frontier)}
    for edge in EDGES:
        if edge in sample:
            maps[edge] = (sample["position"] - sample[edge]).astype(np.float64).transpose("step", "position")
    if not maps:
        raise UserError(
            "no mask token id, canvas or blocks in this sample: distances need a trace of a diffusion or masked model"
        )
    return xr.Dataset(maps)


def mask_distances(
    masked: NDArray[np.bool_], positions: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Signed distances to the nearest and to the leftmost masked position, both `(step, position)`; NaN without one."""
    at = positions.astype(np.float64)
    left = np.maximum.accumulate(np.where(masked, at, -np.inf), axis=1)
    right = np.minimum.accumulate(np.where(masked, at, np.inf)[:, ::-1], axis=1)[:, ::-1]
    nearest = np.where(at - left <= right - at, left, right)
    first = right[:, :1]
    some = masked.any(axis=1, keepdims=True)
    return np.where(some, at - nearest, np.nan), np.where(some, at - first, np.nan)


def sink_distances(sample: xr.Dataset, sinks: xr.DataArray) -> xr.Dataset:
    """Mean distance of a layer's sinks to every mark, `(mark, layer)`: `mean` (signed), `absolute`, `sinks` (how many);

    and over all existing positions, `(mark,)`: `mean_base`, `absolute_base`. Every sink whose distance is known counts
    once.
    """
    return distance_means(distance_sums(sample, sinks))


def distance_sums(sample: xr.Dataset, sinks: xr.DataArray) -> xr.Dataset:
    """The sums behind `sink_distances`, additive over samples."""
    maps = distance_maps(sample).sel(step=sinks["step"].values, position=sinks["position"].values)
    signed = maps.to_dataarray("mark")
    exists = anywhere(sinks["exists"].drop_vars("exists"))
    known = (signed.notnull() & exists).astype(np.float64)
    signed = signed.where(known > 0, 0.0)
    held = sinks.drop_vars("exists").sum([dim for dim in ("head",) if dim in sinks.dims]).astype(np.float64)
    cells = ["step", "position"]
    return xr.Dataset(
        {
            "signed": xr.dot(signed, held, dim=cells),
            "far": xr.dot(abs(signed), held, dim=cells),
            "sinks": xr.dot(known, held, dim=cells),
            "signed_base": signed.sum(cells),
            "far_base": abs(signed).sum(cells),
            "cells": known.sum(cells),
        }
    )


def distance_means(sums: xr.Dataset) -> xr.Dataset:
    """Means from `distance_sums`; NaN where no sink (no position) has a known distance."""
    sinks = sums["sinks"].where(sums["sinks"] > 0)
    cells = sums["cells"].where(sums["cells"] > 0)
    return xr.Dataset(
        {
            "mean": sums["signed"] / sinks,
            "absolute": sums["far"] / sinks,
            "sinks": sums["sinks"].astype(np.int64),
            "mean_base": sums["signed_base"] / cells,
            "absolute_base": sums["far_base"] / cells,
        }
    )
