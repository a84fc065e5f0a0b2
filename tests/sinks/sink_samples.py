"""Small synthetic samples in the trace's schema, made from whole attention maps so that tests can recount by hand."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr
from hypothesis import settings
from numpy.typing import NDArray

LAWS = settings(deadline=None, max_examples=25)
SLOW_LAWS = settings(deadline=None, max_examples=12)
MASK = 7
NEWLINE = 3
STOP = 4
END = 9
TOKENS = {"0": "Ġthe", "1": "▁cat", "2": "sat", "3": "Ċ", "4": ".", "5": "ing", "7": "[MASK]", "9": "<|end|>"}
ATOMS = ("prompt", "committed", "block-committed", "block-masked", "later")


@dataclass(frozen=True)
class Made:
    """A sample, the maps `(step, layer, head, query, key)` behind it and each query's group `(step, query)`."""

    sample: xr.Dataset
    maps: NDArray[np.float64]
    groups: NDArray[np.str_]


def softmax(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    normed: NDArray[np.float64] = weights / weights.sum(axis=-1, keepdims=True)
    return normed


def diffusion(
    seed: int = 0,
    *,
    layers: int = 3,
    heads: int = 5,
    prompt: int = 4,
    generated: int = 8,
    block: int = 4,
    dtype: str = "float32",
    by_head: bool = False,
    sharpness: float = 2.0,
    name: str | None = None,
) -> Made:
    """One position committed a step, at random inside blocks from left to right; every query sees every key."""
    rng = np.random.default_rng(seed)
    positions, steps = prompt + generated, generated
    maps = softmax(sharpness * rng.normal(size=(steps, layers, heads, positions, positions)))
    final = rng.choice([0, 1, 2, NEWLINE, STOP, 5, END], size=positions)
    order = np.concatenate([prompt + start + rng.permutation(block) for start in range(0, generated, block)])
    canvas = np.empty((steps, positions), dtype=np.int32)
    committed = np.zeros((steps, positions), dtype=bool)
    groups = np.empty((steps, positions), dtype="<U16")
    starts = prompt + np.arange(steps) // block * block
    for step in range(steps):
        masked = np.isin(np.arange(positions), order[step:])
        canvas[step] = np.where(masked, MASK, final)
        committed[step, order[step]] = True
        for position in range(positions):
            groups[step, position] = _group(position, prompt, int(starts[step]), block, bool(masked[position]))
    sample = _sample(maps, groups, canvas, committed, final, dtype, by_head, prompt, name or f"made-{seed}")
    sample["block"] = ("step", (np.arange(steps) // block).astype(np.int32))
    sample["block_start"] = ("step", starts.astype(np.int32))
    sample["block_stop"] = ("step", (starts + block).astype(np.int32))
    sample["query_start"] = ("step", np.zeros(steps, dtype=np.int32))
    sample["query_stop"] = ("step", np.full(steps, positions, dtype=np.int32))
    sample["value_norm"] = (("step", "layer", "kv_head", "position"), _norms(rng, steps, layers, heads, positions))
    sample["key_norm"] = (("step", "layer", "kv_head", "position"), _norms(rng, steps, layers, heads, positions))
    return Made(sample, maps, groups)


def autoregressive(
    seed: int = 0, *, layers: int = 3, heads: int = 5, prompt: int = 6, generated: int = 5, dtype: str = "float32"
) -> xr.Dataset:
    """A causal model: step 0 is the prompt, every later step one new query; keys to come are NaN."""
    rng = np.random.default_rng(seed)
    positions, steps = prompt + generated - 1, generated
    received = np.full((steps, layers, heads, positions), np.nan)
    received[0, ..., :prompt] = causal_maps(rng, layers, heads, prompt).mean(axis=-2)
    for step in range(1, steps):
        keys = prompt + step
        received[step, ..., :keys] = softmax(2 * rng.normal(size=(layers, heads, keys)))
    final = rng.choice([0, 1, 2, NEWLINE, STOP, 5], size=positions).astype(np.int32)
    dims = ("step", "layer", "head", "position")
    sizes = dict(zip(dims, received.shape, strict=True))
    return xr.Dataset(
        {
            "received": (dims, received.astype(dtype)),
            "canvas": (("step", "position"), np.tile(final, (steps, 1))),
            "query_start": ("step", np.array([0, *range(prompt, prompt + steps - 1)], dtype=np.int32)),
            "query_stop": ("step", np.arange(prompt, prompt + steps, dtype=np.int32)),
        },
        coords={dim: np.arange(size) for dim, size in sizes.items()},
        attrs=_attributes(f"causal-{seed}", prompt, steps, layers, heads, bidirectional=False),
    )


def causal_maps(rng: np.random.Generator, layers: int, heads: int, tokens: int) -> NDArray[np.float64]:
    scores = 2 * rng.normal(size=(layers, heads, tokens, tokens))
    return softmax(np.where(np.tri(tokens, dtype=bool), scores, -np.inf))


def _group(position: int, prompt: int, start: int, block: int, masked: bool) -> str:
    if position < prompt:
        return "prompt"
    inside = start <= position < start + block
    if masked:
        return "block-masked" if inside else "later"
    return "block-committed" if inside else "committed"


def _norms(rng: np.random.Generator, steps: int, layers: int, heads: int, positions: int) -> NDArray[np.float32]:
    return rng.uniform(1, 9, size=(steps, layers, heads, positions)).astype(np.float32)


def _sample(
    maps: NDArray[np.float64],
    groups: NDArray[np.str_],
    canvas: NDArray[np.int32],
    committed: NDArray[np.bool_],
    final: NDArray[Any],
    dtype: str,
    by_head: bool,
    prompt: int,
    name: str,
) -> xr.Dataset:
    steps, layers, heads, _, positions = maps.shape
    by_group = np.zeros((steps, layers, len(ATOMS), heads, positions))
    queries = np.zeros((steps, len(ATOMS)), dtype=np.int32)
    for step in range(steps):
        for index, atom in enumerate(ATOMS):
            rows = np.flatnonzero(groups[step] == atom)
            queries[step, index] = rows.size
            if rows.size:
                by_group[step, :, index] = maps[step][:, :, rows].mean(axis=2)
    dims = ("step", "layer", "group", "head", "position")
    parts = xr.DataArray(by_group.astype(dtype), dims=dims)
    if not by_head:
        parts = xr.DataArray(by_group.mean(axis=3).astype(dtype), dims=[dim for dim in dims if dim != "head"])
    return xr.Dataset(
        {
            "received": (("step", "layer", "head", "position"), maps.mean(axis=3).astype(dtype)),
            "received_by_group": parts,
            "queries": (("step", "group"), queries),
            "canvas": (("step", "position"), canvas),
            "committed": (("step", "position"), committed),
            "sequence": ("position", final.astype(np.int32)),
        },
        coords={
            "step": np.arange(steps),
            "layer": np.arange(layers),
            "head": np.arange(heads),
            "kv_head": np.arange(heads),
            "position": np.arange(positions),
            "group": list(ATOMS),
        },
        attrs=_attributes(name, prompt, steps, layers, heads, bidirectional=True),
    )


def _attributes(name: str, prompt: int, steps: int, layers: int, heads: int, *, bidirectional: bool) -> dict[str, Any]:
    model = {
        "name": "made",
        "revision": None,
        "bidirectional": bidirectional,
        "mask_token_id": MASK if bidirectional else None,
        "special_ids": [MASK, END] if bidirectional else [END],
        "layers": layers,
        "heads": heads,
    }
    return {
        "id": name,
        "prompt_length": prompt,
        "steps": steps,
        "complete": True,
        "tokens": TOKENS,
        "text": None,
        "sinkscope": {"format_version": 1, "model": model},
    }


def row(*values: float) -> xr.DataArray:
    """One row of received attention."""
    return xr.DataArray(
        np.array(values, dtype=np.float64), dims="position", coords={"position": np.arange(len(values))}
    )
