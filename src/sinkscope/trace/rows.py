"""From one step of a batch to the arrays of one sample.

Padding cut off, positions counted from the sample's first token.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from sinkscope.attention import PassStatistics
from sinkscope.decoding import Step
from sinkscope.trace.layout import Maps, Statistics

Arrays = dict[str, NDArray[np.generic]]


@dataclass(frozen=True, kw_only=True)
class BatchRow:
    """One row of a batch. `padding`: columns of padding on its left."""

    number: int
    padding: int


def heads_by_layer(by_head: torch.Tensor) -> list[int]:
    """How many heads each layer has, of values (layer, batch, head, key) that are NaN where it has none."""
    counts: list[int] = by_head.isnan().all(-1).all(1).logical_not().sum(-1).tolist()
    return counts


def step_arrays(step: Step, number: int, seen: PassStatistics, row: BatchRow, kept: Statistics) -> Arrays:
    """What a `SampleWriter` takes for this step, the sample's own `number`."""
    width = step.seen.shape[1]
    arrays: Arrays = {
        "received": _numpy(_keys(seen.received[:, row.number], width, row)),
        "canvas": _numpy(step.seen[row.number, row.padding :]).astype(np.int32),
        "committed": _numpy(step.committed[row.number, row.padding :]),
        "confidence": _numpy(step.confidence[row.number, row.padding :]),
        "block": np.array(step.block, dtype=np.int32),
        **_bounds("block", step.block_range, row),
        **_bounds("query", step.queries, row),
    }
    if kept.noise:
        assert step.noise is not None
        arrays["encoder"] = np.array(step.noise.encoder)
        for name in ("kept", "predicted", "entropy", "self_conditioning"):
            values = _numpy(getattr(step.noise, name)[row.number, row.padding :])
            arrays[{"entropy": "prediction_entropy"}.get(name, name)] = (
                values.astype(np.int32) if name == "predicted" else values
            )
    if kept.groups:
        arrays["queries"] = _numpy(seen.queries[row.number]).astype(np.int32)
    if kept.by_group is not None:
        assert seen.by_group is not None
        split = _keys(seen.by_group[:, row.number], width, row)  # (layer, group, head, position)
        arrays["received_by_group"] = _numpy(_mean(split) if kept.by_group == "mean" else split)
    if kept.no_key:
        assert seen.no_key is not None
        arrays["no_key"] = _numpy(seen.no_key[:, row.number])
    if kept.no_key and kept.by_group is not None:
        assert seen.no_key_by_group is not None
        to_none = seen.no_key_by_group[:, row.number]  # (layer, group, head)
        arrays["no_key_by_group"] = _numpy(_mean(to_none.unsqueeze(-1))[..., 0] if kept.by_group == "mean" else to_none)
    if kept.norms:
        assert seen.key_norm is not None
        assert seen.value_norm is not None
        arrays["key_norm"] = _numpy(_keys(seen.key_norm[:, row.number], width, row))
        arrays["value_norm"] = _numpy(_keys(seen.value_norm[:, row.number], width, row))
    if kept.entropy:
        assert seen.entropy is not None
        arrays["entropy"] = _numpy(_queries(seen.entropy[:, row.number], step, row))
    if kept.unconditional:
        arrays["received_unconditional"] = _numpy(_keys(seen.received[:, len(step.seen) + row.number], width, row))
    if kept.removed:
        assert step.removed is not None
        taken = step.removed.row(row.number)
        arrays["removed"] = np.array([float(getattr(taken, name)) for name in kept.removed])
    if kept.maps is not None and number in kept.maps.steps:
        arrays["attention"] = _numpy(_maps(seen, kept.maps, step, row))
    return arrays


def final_arrays(seen: PassStatistics) -> Arrays:
    """The variables of a finished sequence, passed whole and alone."""
    arrays = {"final_received": _numpy(seen.received[:, 0])}
    if seen.no_key is not None:
        arrays["final_no_key"] = _numpy(seen.no_key[:, 0])
    if seen.outputs is not None:
        arrays |= {f"final_{name}": _numpy(values[:, 0]) for name, values in vars(seen.outputs).items()}
    return arrays


def _bounds(name: str, columns: tuple[int, int], row: BatchRow) -> Arrays:
    start, stop = (np.array(max(0, column - row.padding), dtype=np.int32) for column in columns)
    return {f"{name}_start": start, f"{name}_stop": stop}


def _mean(by_head: torch.Tensor) -> torch.Tensor:
    """Means over the heads that a layer has, (layer, group, head, position) -> (layer, group, position); a head without
    the key gives nothing."""
    missing = by_head.isnan()
    heads = missing.all(-1).all(1, keepdim=True).logical_not().sum(2, keepdim=True)  # (layer, 1, 1)
    return (by_head.nan_to_num(0).sum(2) / heads).masked_fill(missing.all(2), torch.nan)


def _keys(values: torch.Tensor, width: int, row: BatchRow) -> torch.Tensor:
    """Values of a row's own keys (..., position). First keys that a sliding cache has forgotten are not there (NaN)."""
    whole = torch.nn.functional.pad(values, (width - values.shape[-1], 0), value=torch.nan)
    return whole[..., row.padding :]


def _queries(values: torch.Tensor, step: Step, row: BatchRow) -> torch.Tensor:
    """Values of the rows that were fed (..., query), laid out over positions; NaN elsewhere."""
    laid_out = values.new_full((*values.shape[:-1], step.seen.shape[1]), torch.nan)
    laid_out[..., step.queries[0] : step.queries[1]] = values
    return laid_out[..., row.padding :]


def _maps(seen: PassStatistics, maps: Maps, step: Step, row: BatchRow) -> torch.Tensor:
    """Full maps (map_layer, map_head, query, position); NaN where a query was not fed, or a layer lacks the head."""
    width = step.seen.shape[1]
    chosen = torch.stack([_keys(seen.maps[layer][row.number], width, row) for layer in maps.layers])
    known = chosen.isnan().all(-1).all(-1).logical_not()  # (map_layer, map_head)
    chosen = torch.where(known[..., None, None], chosen.nan_to_num(0), torch.nan)
    laid_out = chosen.new_full((*chosen.shape[:2], width, chosen.shape[-1]), torch.nan)
    laid_out[:, :, step.queries[0] : step.queries[1]] = chosen
    return laid_out[:, :, row.padding :]


def _numpy(values: torch.Tensor) -> NDArray[np.generic]:
    array: NDArray[np.generic] = values.cpu().numpy()
    return array
