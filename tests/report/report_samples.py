"""Samples in the trace's schema with strong sinks, cells of ablations, logs, and a look at what Axes hold."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Annotation
from numpy.typing import NDArray

MASK = 7
TOKENS = {"0": "Ġthe", "1": "▁cat", "2": "sat", "3": "Ċ", "4": ".", "5": "ing", "7": "[MASK]", "9": "<|end|>"}
ATOMS = ("prompt", "committed", "block-committed", "block-masked", "later")
STEPS, LAYERS, HEADS, POSITIONS, PROMPT, BLOCK = 7, 2, 3, 11, 4, 4
LAST = POSITIONS - 1
DIMS = ("step", "layer", "head", "position")


def made(seed: int = 0, *, name: str = "made", model: str = "model-a", dtype: str = "float64") -> xr.Dataset:
    """A diffusion sample of 7 steps, 11 positions in a prompt of 4 and two blocks of 4 and 3; position 2 is a sink of
    the mean over layers and heads at the first three steps, position 8 from then on."""
    rng = np.random.default_rng(seed)
    received = rng.exponential(0.3, size=(STEPS, LAYERS, HEADS, POSITIONS))
    received[:3, ..., 2] += 5
    received[3:, ..., 8] += 5
    received /= received.sum(-1, keepdims=True)
    order = np.array([5, 4, 7, 6, 9, 10, 8])
    final = rng.choice([0, 1, 2, 3, 4, 5, 9], size=POSITIONS).astype(np.int32)
    masked = np.array([np.isin(np.arange(POSITIONS), order[step:]) for step in range(STEPS)])
    start = PROMPT + (np.arange(STEPS) // BLOCK) * BLOCK
    stop = np.minimum(start + BLOCK, POSITIONS)
    groups = rng.exponential(1.0, size=(STEPS, LAYERS, len(ATOMS), POSITIONS))
    inside = (np.arange(POSITIONS) >= start[:, None]) & (np.arange(POSITIONS) < stop[:, None])
    prompt = np.arange(POSITIONS) < PROMPT
    queries = np.stack(
        [
            np.broadcast_to(prompt, masked.shape).sum(1),
            (~masked & ~prompt & ~inside).sum(1),
            (~masked & inside).sum(1),
            (masked & inside).sum(1),
            (masked & ~inside).sum(1),
        ],
        axis=1,
    )
    sample = xr.Dataset(
        {
            "received": (DIMS, received.astype(dtype)),
            "received_by_group": (
                ("step", "layer", "group", "position"),
                (groups / groups.sum(-1, keepdims=True)).astype(dtype),
            ),
            "queries": (("step", "group"), queries.astype(np.int32)),
            "canvas": (("step", "position"), np.where(masked, MASK, final).astype(np.int32)),
            "committed": (("step", "position"), np.arange(POSITIONS) == order[:, None]),
            "block_start": ("step", start.astype(np.int32)),
            "block_stop": ("step", stop.astype(np.int32)),
            "sequence": ("position", final),
        },
        coords={
            "step": np.arange(STEPS),
            "layer": np.arange(LAYERS),
            "head": np.arange(HEADS),
            "position": np.arange(POSITIONS),
            "group": list(ATOMS),
        },
    )
    sample.attrs = _attributes(name, model, bidirectional=True)
    return sample


def causal(seed: int = 1, *, name: str = "made", model: str = "model-b") -> xr.Dataset:
    """An autoregressive sample: 5 steps, 6 to 10 keys, the first a sink; keys to come are NaN."""
    rng = np.random.default_rng(seed)
    received = np.full((5, LAYERS, HEADS, 10), np.nan)
    for step in range(5):
        row = rng.exponential(0.3, size=(LAYERS, HEADS, 6 + step))
        row[..., 0] += 6
        received[step, ..., : 6 + step] = row / row.sum(-1, keepdims=True)
    sample = xr.Dataset(
        {
            "received": (DIMS, received),
            "canvas": (("step", "position"), rng.choice([0, 1, 2, 3], size=(5, 10)).astype(np.int32)),
        },
        coords={dim: np.arange(size) for dim, size in zip(DIMS, received.shape, strict=True)},
    )
    sample.attrs = _attributes(name, model, bidirectional=False) | {"prompt_length": 6}
    return sample


def with_maps(sample: xr.Dataset, steps: tuple[int, ...] = (1, 4, 5), seed: int = 5) -> xr.Dataset:
    """The sample with full maps of these steps, layers 0 and 1, head 2."""
    rng = np.random.default_rng(seed)
    maps = rng.exponential(1.0, size=(len(steps), 2, 1, POSITIONS, POSITIONS))
    dims = ("map_step", "map_layer", "map_head", "query", "position")
    return sample.assign(attention=(dims, maps / maps.sum(-1, keepdims=True))).assign_coords(
        map_step=list(steps), map_layer=[0, 1], map_head=[2], query=np.arange(POSITIONS)
    )


def _attributes(name: str, model: str, *, bidirectional: bool) -> dict[str, Any]:
    record = {
        "name": model,
        "revision": None,
        "bidirectional": bidirectional,
        "mask_token_id": MASK if bidirectional else None,
        "special_ids": [MASK, 9],
    }
    return {
        "id": name,
        "prompt_length": PROMPT,
        "complete": True,
        "tokens": TOKENS,
        "sinkscope": {"format_version": 1, "model": record},
    }


def head_mean(sample: xr.Dataset) -> NDArray[np.float64]:
    """Received attention by the way it is stored, averaged over layers and heads, `(step, position)`."""
    mean: NDArray[np.float64] = np.asarray(sample["received"].values, dtype=np.float64).mean(axis=(1, 2))
    return mean


def excess_sinks(row: NDArray[np.float64], epsilon: float) -> set[int]:
    """Places whose n r exceeds the mean of the other existing ones' by more than epsilon, by the words of the rule."""
    there = [place for place, share in enumerate(row) if not np.isnan(share)]
    scores = {place: len(there) * row[place] for place in there}
    return {
        place
        for place in there
        if scores[place] > sum(scores[other] for other in there if other != place) / (len(there) - 1) + epsilon
    }


def cell(
    right: list[float], *, keys: object = None, control: str | None = None, seed: int = 0, model: str = "twin-x",
    task: str = "copy", exact: bool = True, n: int | None = None, better: str = "high",
    masking: Mapping[str, object] = MappingProxyType({}), removed: Mapping[str, float] | None = None,
) -> str:  # fmt: skip
    """One line of `cells.jsonl`; `keys` None is the plain run, `masking` what else the intervention sets."""
    chosen = {"keys": keys, "control": control, "seed": seed}
    intervention = {**chosen, "detect": "previous", "how": "scores", **masking}
    settings = {
        "grid": "ablation",
        "model": {"name": model, "revision": None},
        "measure": {"task": task, "n": n or len(right)},
        "condition": {"intervention": None if keys is None else intervention, "compression": None, "point": None},
    }
    measured = {
        "numerators": right,
        "denominators": [1.0] * len(right),
        "exact": exact,
        "better": better,
        "unit": "points",
        "stats": {"removed": None if removed is None else dict(removed)},
        "batch_size": 64,
        "seconds": 0.5,
    }
    return json.dumps({"settings": settings, "measured": measured}) + "\n"


def log_row(point: int, *, layers: int = 3, tasks: int = 2) -> dict[str, Any]:
    """A point of a training log; tasks besides two have names of their own."""
    measured = {
        "sink_first": [0.1 * point + layer / 100 for layer in range(layers)],
        "top_received": [0.2 + layer / 10 + point / 1000 for layer in range(layers)],
    }
    return {
        "point": point,
        "step": 100 * point,
        "accuracy": {"copy": point / 10, "sort": point / 20} | {f"arithmetic-{n}": 0.5 for n in range(tasks - 2)},
        "sinks": {"finished": measured},
    }


def write_log(folder: Path, rows: list[dict[str, Any]]) -> Path:
    folder.mkdir(parents=True)
    (folder / "training_log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def lines(ax: Axes, gid: str) -> list[Line2D]:
    """The lines of this kind, in the order in which they were drawn."""
    return [line for line in ax.lines if line.get_gid() == gid]


def places(line: Line2D) -> set[tuple[int, int]]:
    """Where a line's markers stand, as whole numbers (x, y)."""
    return {(int(x), int(y)) for x, y in np.asarray(line.get_xydata())}


def settings_of(ax: Axes) -> str:
    """The line below the title that says how the numbers were made."""
    found = [text for text in ax.texts if text.get_gid() == "settings"]
    return " ".join(found[0].get_text().split()) if found else ""


def caption_of(figure: Figure) -> str:
    """The line below all panels."""
    return " ".join(figure.get_supxlabel().split())


def legend_labels(ax: Axes) -> list[str]:
    legend = ax.get_legend()
    return [] if legend is None else [text.get_text() for text in legend.get_texts()]


def figure_of(ax: Axes) -> Figure:
    figure = ax.get_figure(root=True)
    assert figure is not None
    return figure


def tokens_at_right(ax: Axes) -> dict[int, str]:
    """The labels beside a heat map, by position."""
    notes = [text for text in ax.texts if isinstance(text, Annotation) and text.get_gid() == "token"]
    return {int(note.xy[1]): note.get_text() for note in notes}


def shown(ax: Axes, number: int = 0) -> np.ma.MaskedArray[Any, np.dtype[np.float64]]:
    """The numbers of the image on the axes, NaN masked."""
    return np.ma.masked_invalid(np.ma.asarray(ax.images[number].get_array(), dtype=np.float64))


def xs(line: Line2D) -> NDArray[np.float64]:
    return np.asarray(line.get_xdata(), dtype=np.float64)


def ys(line: Line2D) -> NDArray[np.float64]:
    return np.asarray(line.get_ydata(), dtype=np.float64)


def edited(trace: Path, target: Path, **attributes: object) -> Path:
    """A copy of a trace, its first sample's attributes changed."""
    shutil.copytree(trace, target)
    file = target / "samples" / "000000" / "zarr.json"
    document = json.loads(file.read_text())
    document["attributes"] |= attributes
    file.write_text(json.dumps(document))
    return target
