"""Small checkpoints for the tests of families: copies of the fixtures with changes, and tiny random stock models."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

import sinkscope.attention  # noqa: F401  registers the attention function that loading asks for by default

Weights = dict[str, Tensor]


def changed_copy(
    source: Path,
    target: Path,
    config: Mapping[str, Any] | None = None,
    drop: tuple[str, ...] = (),
    weights: Callable[[Weights], Weights] | None = None,
) -> Path:
    """A copy of a checkpoint folder with other fields in config.json, without those in `drop`, with other weights."""
    target.mkdir(parents=True, exist_ok=True)
    shutil.copy(source / "model.safetensors", target)
    fields = json.loads((source / "config.json").read_text()) | dict(config or {})
    (target / "config.json").write_text(json.dumps({name: fields[name] for name in fields if name not in drop}))
    if weights is not None:
        save_file(weights(load_file(source / "model.safetensors")), target / "model.safetensors", {"format": "pt"})
    return target


def sharded_copy(source: Path, target: Path, shards: int) -> Path:
    """The same checkpoint in several files with an index, as the hub keeps large ones."""
    changed_copy(source, target)
    (target / "model.safetensors").unlink()
    content = load_file(source / "model.safetensors")
    placed = {name: f"model-{order % shards + 1:05}-of-{shards:05}.safetensors" for order, name in enumerate(content)}
    for shard in set(placed.values()):
        part = {name: weight for name, weight in content.items() if placed[name] == shard}
        save_file(part, target / shard, {"format": "pt"})
    (target / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": placed}))
    return target
