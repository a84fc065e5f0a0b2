"""Samples in the trace's schema with key norms, axes of different sizes, and rows by the words of the schema."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

STEPS, LAYERS, HEADS, KV_HEADS, POSITIONS, PROMPT, BLOCK = 7, 2, 6, 3, 13, 4, 3
SHARED = HEADS // KV_HEADS
MASK = 17
DIMS = ("step", "layer", "head", "position")
ATOMS = ("prompt", "committed", "block-committed", "block-masked", "later")


def diffusion(seed: int = 0, *, name: str | None = None, model: str = "made-dlm", ties: bool = False) -> xr.Dataset:
    """Seven steps over thirteen positions, a prompt of four, the block moves at steps 3 and 6.

    Norms change a little.
    """
    rng = np.random.default_rng(seed)
    received = rng.exponential(1.0, size=(STEPS, LAYERS, HEADS, POSITIONS))
    norm = rng.uniform(1, 9, size=(1, LAYERS, KV_HEADS, POSITIONS)) + rng.uniform(
        0, 2, (STEPS, LAYERS, KV_HEADS, POSITIONS)
    )
    if ties:
        received, norm = np.ceil(received), np.ceil(norm)
    received /= received.sum(-1, keepdims=True)
    start = PROMPT + BLOCK * (np.arange(STEPS) // BLOCK)
    masked = np.arange(POSITIONS) >= PROMPT + np.arange(STEPS)[:, None]
    groups = rng.exponential(1.0, size=(STEPS, LAYERS, len(ATOMS), HEADS, POSITIONS))
    sample = xr.Dataset(
        {
            "received": (DIMS, received),
            "received_by_group": (
                ("step", "layer", "group", "head", "position"),
                groups / groups.sum(-1, keepdims=True),
            ),
            "queries": (("step", "group"), np.tile(np.array([PROMPT, 1, 2, 3, 3], dtype=np.int32), (STEPS, 1))),
            "key_norm": (("step", "layer", "kv_head", "position"), norm.astype(np.float32)),
            "canvas": (("step", "position"), np.where(masked, MASK, 5).astype(np.int32)),
            "block_start": ("step", start.astype(np.int32)),
            "block_stop": ("step", (start + BLOCK).astype(np.int32)),
            "query_start": ("step", np.zeros(STEPS, dtype=np.int32)),
            "query_stop": ("step", np.full(STEPS, POSITIONS, dtype=np.int32)),
        },
        coords={"group": list(ATOMS)},
    )
    return _labelled(sample, name or f"diffusion-{seed}", model, bidirectional=True)


def causal(seed: int = 0, *, prompt: int = PROMPT, steps: int = 5, name: str | None = None) -> xr.Dataset:
    """Step 0 reads the prompt, each later step one token; keys to come are NaN."""
    rng = np.random.default_rng(seed)
    positions = prompt + steps - 1
    received = np.full((steps, LAYERS, HEADS, positions), np.nan)
    norm = np.full((steps, LAYERS, KV_HEADS, positions), np.nan)
    fixed = rng.uniform(1, 9, size=(LAYERS, KV_HEADS, positions))
    for step in range(steps):
        keys = prompt + step
        row = rng.exponential(1.0, size=(LAYERS, HEADS, keys))
        received[step, ..., :keys] = row / row.sum(-1, keepdims=True)
        norm[step, ..., :keys] = fixed[..., :keys]
    start = np.array([0, *range(prompt, positions)], dtype=np.int32)
    sample = xr.Dataset(
        {
            "received": (DIMS, received),
            "key_norm": (("step", "layer", "kv_head", "position"), norm.astype(np.float32)),
            "canvas": (("step", "position"), np.full((steps, positions), 5, dtype=np.int32)),
            "query_start": ("step", start),
            "query_stop": ("step", np.arange(prompt, prompt + steps, dtype=np.int32)),
        }
    )
    return _labelled(sample, name or f"causal-{seed}", "made-ar", bidirectional=False)


def _labelled(sample: xr.Dataset, name: str, model: str, *, bidirectional: bool) -> xr.Dataset:
    places = {dim: np.arange(sample.sizes[dim]) for dim in (*DIMS, "kv_head")}
    record: dict[str, Any] = {
        "name": model,
        "revision": None,
        "bidirectional": bidirectional,
        "mask_token_id": MASK if bidirectional else None,
        "special_ids": [],
    }
    return sample.assign_coords(places).assign_attrs(
        id=name, complete=True, prompt_length=PROMPT, tokens={}, sinkscope={"format_version": 1, "model": record}
    )


Row = tuple[tuple[int, int, int], NDArray[np.float64], NDArray[np.float64], list[int]]


def rows(sample: xr.Dataset, *, among: str = "all") -> Iterator[Row]:
    """Every (step, layer, key head) that counts, with the attention and the norms of the keys that do, and which they
    are; by loops over the stored numbers."""
    received, norm = sample["received"].values, sample["key_norm"].values.astype(np.float64)
    both_ways = sample.attrs["sinkscope"]["model"]["bidirectional"]
    for step in range(received.shape[0]):
        if not both_ways and sample["query_stop"].values[step] - sample["query_start"].values[step] != 1:
            continue
        keys = [key for key in range(received.shape[-1]) if _counts(sample, step, key, among, both_ways)]
        for layer in range(received.shape[1]):
            for kv_head in range(norm.shape[2]):
                heads = range(kv_head * SHARED, (kv_head + 1) * SHARED)
                attention = np.array([np.mean([received[step, layer, head, key] for head in heads]) for key in keys])
                yield (step, layer, kv_head), attention, norm[step, layer, kv_head, keys], keys


def _counts(sample: xr.Dataset, step: int, key: int, among: str, both_ways: Any) -> bool:
    if np.isnan(sample["received"].values[step, 0, 0, key]):
        return False
    if not both_ways:
        return key != int(sample["query_start"].values[step])
    if among == "outside-block":
        return not int(sample["block_start"].values[step]) <= key < int(sample["block_stop"].values[step])
    if among == "tokens":
        return int(sample["canvas"].values[step, key]) != MASK
    return True


def brute_loss(attention: NDArray[np.float64], importance: NDArray[np.float64]) -> float:
    """ALR by its definition: for every m, what the m keys dropped first receive, minus what the m smallest do."""
    n = len(attention)
    # Least important first; of equal ones the right one.
    order = sorted(range(n), key=lambda key: (importance[key], -key))
    least = sorted(attention)
    losses = [sum(attention[key] for key in order[:m]) - sum(least[:m]) for m in range(1, n + 1)]
    return float(sum(losses))
