"""Measure what dropping keys from the block cache of `twin-dlm` costs; print the tables of docs/results/compression.md.

    OMP_NUM_THREADS=1 python docs/make_block_compression.py

Finished cells are kept in runs/block-compression and not measured again. It takes five minutes on one core.
"""

import json
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from commands import share

import sinkscope as ss
from sinkscope.compression import Compress, SkipLayers
from sinkscope.decoding import Denoising
from sinkscope.decoding.caches import BlockCache, BlockPlace
from sinkscope.decoding.protocols import block_layers
from sinkscope.errors import TrainedLengthWarning
from sinkscope.evaluation import Score, evaluate, find_task, task_settings
from sinkscope.families import Model
from sinkscope.grids import Outcome, difference

RUNS = Path("runs/block-compression")
N = 200
ROOM = 64
TASKS = (("passkey", 4), ("lookup", 4), ("copy", 4), ("copy", 8))
"""Tasks and lengths of a block."""
RATIOS = (0.75, 0.5, 0.25, 0.1)
DRAWS = 3
SCORERS = (
    "key-norm", "high-key-norm", "random", "streaming", "received-attention", "sparse-dllm", "key-norm, from layer 2",
    "random, from layer 2",
)  # fmt: skip


def main() -> None:
    """Measure every cell, then print the tables."""
    RUNS.mkdir(parents=True, exist_ok=True)
    model = ss.load_model("twin-dlm", device="cpu")
    for task, block in TASKS:
        plain = measured(model, task, block, None)
        for scorer in SCORERS:
            for ratio in RATIOS:
                for draw in range(DRAWS if scorer.startswith("random") else 1):
                    measured(model, task, block, compression(scorer, ratio, draw))
        print_table(model, task, block, plain)
    for kept in (None, *RATIOS):
        print(f"context of 480 tokens, kept {kept or 1:g}: {cache_bytes(model, kept)} bytes")


@torch.no_grad()
def cache_bytes(model: Model, ratio: float | None) -> int:
    """Bytes of a dual cache after the first pass of a block of 32 columns."""
    tokens = torch.zeros(1, 512, dtype=torch.long)
    place = BlockPlace(
        kind="dual", start=448, stop=480, real=torch.ones_like(tokens, dtype=torch.bool), prompt_length=448
    )
    dropping = None if ratio is None else Compress("key-norm", ratio).for_blocks(model)
    cache = BlockCache(place, block_layers(dropping, model, place, [0]))
    model.network(input_ids=tokens, cache=cache, use_cache=True)
    cache.hold()
    return cache.nbytes


def compression(scorer: str, ratio: float, draw: int) -> Compress:
    """One cell's settings."""
    name, _, skipping = scorer.partition(", ")
    return Compress(name, SkipLayers(ratio, (0, 1)) if skipping else ratio, seed=draw)


def measured(model: Model, task: str, block: int, compress: Compress | None) -> list[bool]:
    """Which answers are right, from the file of an earlier run where there is one."""
    stated = {"task": task, "block": block, "n": N, "room": ROOM, "compression": compress and compress.to_dict()}
    path = RUNS / "cells.jsonl"
    for cell in cells(path):
        if cell["stated"] == stated:
            return list(cell["right"])
    score = scored(model, task, block, compress)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"stated": stated, "right": score.right, "seconds": score.seconds}) + "\n")
    print(f"{stated} {score.score:.3f} in {score.seconds:.0f} s", flush=True)
    return list(score.right)


def cells(path: Path) -> Iterator[dict[str, Any]]:
    """Cells that were measured."""
    if path.exists():
        yield from map(json.loads, path.read_text(encoding="utf-8").splitlines())


def scored(model: Model, task: str, block: int, compress: Compress | None) -> Score:
    """One evaluation in the dual cache."""
    settings = task_settings(model, find_task(task))
    assert isinstance(settings, Denoising)
    settings = replace(settings, cache="dual", block_length=block)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TrainedLengthWarning)
        with ss.watch(model):  # for `received-attention`
            return evaluate(
                model, task, n=N, max_example_tokens=ROOM, settings=settings, compression=compress, batch_size=50
            )


def print_table(model: Model, task: str, block: int, plain: Sequence[bool]) -> None:
    """Scores with intervals, and what the key norms do beyond random keys."""
    print(f"\n{task}, blocks of {block}, n = {N}; everything kept: {share_of(plain)}\n")
    print(f"| | {' | '.join(f'{ratio:g}' for ratio in RATIOS)} |\n|---|{'---|' * len(RATIOS)}")
    for scorer in SCORERS:
        cell = [draws(model, task, block, scorer, ratio) for ratio in RATIOS]
        print(f"| {scorer} | {' | '.join(share_of([right for draw in one for right in draw]) for one in cell)} |")
    for suffix in ("", ", from layer 2"):
        gaps = []
        for ratio in RATIOS:
            ours, random = (draws(model, task, block, name + suffix, ratio) for name in ("key-norm", "random"))
            gap = difference([outcome(one) for one in ours], [outcome(one) for one in random])
            gaps.append(f"{100 * gap.value:+.1f} ({100 * gap.low:+.1f} to {100 * gap.high:+.1f})")
        print(f"| key-norm less random{suffix} | {' | '.join(gaps)} |")
    print(flush=True)


def draws(model: Model, task: str, block: int, scorer: str, ratio: float) -> list[list[bool]]:
    """Right answers of each draw."""
    count = DRAWS if scorer.startswith("random") else 1
    return [measured(model, task, block, compression(scorer, ratio, draw)) for draw in range(count)]


def outcome(right: Sequence[bool]) -> Outcome:
    """For paired differences."""
    return Outcome(np.array(right, dtype=np.float64), np.ones(len(right)), exact=True)


def share_of(right: Sequence[bool]) -> str:
    """The mean of all draws' answers."""
    return share(sum(right) / len(right), N)


if __name__ == "__main__":
    main()
