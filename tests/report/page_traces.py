"""Traces for the page, written straight into a store: strong sinks, axes of different prime sizes, any tokens."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sinkscope.attention import GROUPS
from sinkscope.trace import Counts, Maps, Statistics, TraceStore, plan_layout

MASK = 7
WORDS = ("The", " cat", " sat", " on", " a", " mat", ".", " And", " then", " it", " slept")


@dataclass(frozen=True, kw_only=True)
class Made:
    """What a trace to be written looks like."""

    seed: int = 0
    steps: int = 7
    layers: int = 3
    heads: int = 5
    positions: int = 23
    prompt: int = 5
    causal: bool = False
    complete: bool = True
    samples: int = 1
    texts: Mapping[int, str] | None = field(default_factory=lambda: dict(enumerate(WORDS, 100)) | {MASK: "[MASK]"})
    """Token texts by id; None: a trace without any."""
    whole: bool = False
    """With norms, entropy, and full maps of two steps."""
    heads_alike: bool = True
    """False: one head alone has a sink."""

    def write(self, path: Path) -> Path:
        """Write the trace."""
        attributes = {
            "model": {
                "name": path.stem, "bidirectional": not self.causal, "mask_token_id": None if self.causal else MASK,
                "special_ids": [MASK], "layers": self.layers, "heads": self.heads,
            },
            "decoding": {"kind": "decoding" if self.causal else "denoising", "seed": self.seed},
            "versions": {"sinkscope": "0.1.0"},
        }  # fmt: skip
        counts = Counts(
            max_steps=self.steps, layers=self.layers, heads=self.heads, kv_heads=self.heads, positions=self.positions
        )
        maps = Maps(steps=(1, 4), layers=(0, 2), heads=tuple(range(self.heads))) if self.whole else None
        statistics = Statistics(groups=GROUPS, by_group="mean", norms=self.whole, entropy=self.whole, maps=maps)
        layout = plan_layout(counts, statistics)
        with TraceStore.create(path, attributes) as store:
            for index in range(self.samples):
                rng = np.random.default_rng(self.seed + index)
                final = rng.choice(self.ids, self.positions).astype(np.int32)
                writer = store.sample(index, f"q{index}", layout, {"prompt_length": self.prompt})
                done = self.steps if self.complete else self.steps - 2
                for step in range(done):
                    writer.append(self.rows(step, final, rng))
                if self.complete:
                    tokens = None if self.texts is None else {str(token): text for token, text in self.texts.items()}
                    writer.finish({"sequence": final}, {"tokens": tokens, "text": None})
        return path

    @property
    def ids(self) -> list[int]:
        """Ids that the finished sequence may hold."""
        return [token for token in self.texts if token != MASK] if self.texts else [31, 37, 41]

    def rows(self, step: int, final: NDArray[np.int32], rng: np.random.Generator) -> dict[str, Any]:
        """All variables of one step: two tokens are committed a step, from left to right, or one is added."""
        place = np.arange(self.positions)
        now = self.prompt + (step if self.causal else 2 * step)
        known = place < (now if self.causal else self.positions)
        committed = (place >= now) & (place < now + (1 if self.causal else 2))
        return {
            "received": self.attention(rng, (self.layers, self.heads), known, step),
            "received_by_group": self.attention(rng, (self.layers, len(GROUPS)), known, step),
            "queries": np.array([self.prompt, now - self.prompt, 0, 4, 3 if step < 3 else 0], dtype=np.int32),
            "canvas": np.where(place < now, final, -1 if self.causal else MASK).astype(np.int32),
            "committed": committed,
            "confidence": np.where(committed, rng.random(self.positions), np.nan).astype(np.float32),
            "block": 0,
            "block_start": self.prompt,
            "block_stop": self.positions,
            "query_start": 0,
            "query_stop": self.positions,
            **(self.others(step, rng, known) if self.whole else {}),
        }

    def others(self, step: int, rng: np.random.Generator, known: NDArray[np.bool_]) -> dict[str, Any]:
        """Norms, entropy and, at the steps that have them, full maps of layers 0 and 2."""
        shape = (self.layers, self.heads, self.positions)
        found = {name: rng.uniform(0.5, 40, shape).astype(np.float32) for name in ("key_norm", "value_norm", "entropy")}
        if step in (1, 4):
            found["attention"] = np.stack(
                [self.attention(rng, (2, self.heads), known, step) for _ in range(self.positions)], axis=2
            )
        return found

    def attention(
        self, rng: np.random.Generator, rows: tuple[int, int], known: NDArray[np.bool_], step: int
    ) -> NDArray[np.float32]:
        """Shares that sum to 1 over the known positions, one of the first two keys or a wandering one far ahead."""
        amounts = rng.exponential(0.3, (*rows, self.positions))
        chosen = np.ones(rows)
        if not self.heads_alike:
            chosen[:] = 0
            chosen[-1, 1] = 1
        amounts[..., 1] += 4 * chosen
        amounts[..., (3 + step) % self.positions] += 3 * chosen * rng.random(rows)
        amounts[..., ~known] = 0
        shares: NDArray[np.float32] = (amounts / amounts.sum(-1, keepdims=True)).astype(np.float32)
        shares[..., ~known] = np.nan
        return shares
