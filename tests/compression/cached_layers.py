"""Made-up layers of a cache, with axes of different sizes, for tests of scorers."""

import sys
from types import ModuleType
from typing import Any

import torch

from sinkscope.compression import SCORERS, CachedLayer


class _ScorerPress:
    """What a press is, in a stand-in of kvpress, whose versions don't meet ours."""

    compression_ratio = 0.0


class _KnormPress(_ScorerPress):
    def score(self, module: Any, hidden: Any, keys: torch.Tensor, values: Any, attentions: Any, given: Any) -> Any:
        del module, hidden, values, attentions, given
        return -keys.norm(dim=-1)


class _SnapKVPress(_ScorerPress):
    def score(self, module: Any, *_: Any) -> Any:
        return module.head_dim


sys.modules["kvpress"] = ModuleType("kvpress")
vars(sys.modules["kvpress"]).update(ScorerPress=_ScorerPress, KnormPress=_KnormPress, SnapKVPress=_SnapKVPress)

ANYWHERE = sorted(name for name, kind in SCORERS.items() if not (kind.rereads or kind.rerotates))
"""Scorers that only choose, in any cache."""
BATCH, KV_HEADS, GROUPS, KEYS, DIM, QUERIES = 2, 3, 2, 13, 8, 11


class HalfTurn:
    """A rotation that a test can follow: positions turn nothing, what is to come doubles."""

    def undone(self, queries: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        del positions
        return queries

    def averaged(self, vectors: torch.Tensor, first: torch.Tensor, count: int) -> torch.Tensor:
        del first, count
        return vectors

    def moved(self, keys: torch.Tensor, old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        del old, new
        return keys


def made_up(dtype: torch.dtype = torch.float32, padding: int = 0, **changes: Any) -> CachedLayer:
    """A layer of random numbers; `padding` slots on the left of row 1 hold nothing."""
    keys, queries = KEYS, QUERIES
    positions = torch.arange(keys).expand(BATCH, KV_HEADS, keys).clone()
    real = torch.ones(BATCH, KV_HEADS, keys, dtype=torch.bool)
    real[1, :, :padding] = False
    positions[1] = (positions[1] - padding).clamp(min=0)
    length = torch.tensor([keys, keys - padding])
    given: dict[str, Any] = {
        "keys": torch.randn(BATCH, KV_HEADS, keys, DIM).to(dtype),
        "values": torch.randn(BATCH, KV_HEADS, keys, DIM).to(dtype),
        "positions": positions,
        "real": real,
        "layer": 1,
        "length": length,
        "seeds": (5, 6),
        "prompt_length": length,
        "queries": torch.randn(BATCH, KV_HEADS * GROUPS, queries, DIM).to(dtype),
        "query_positions": (length.view(-1, 1) - queries + torch.arange(queries)).clamp(min=0),
        "query_real": (length.view(-1, 1) - queries + torch.arange(queries)) >= 0,
        "scale": DIM**-0.5,
        "received": torch.rand(BATCH, KV_HEADS * GROUPS, keys),
        "rotation": HalfTurn(),
    }
    return CachedLayer(**{**given, **changes})


def one_row(cached: CachedLayer, row: int) -> CachedLayer:
    """The same row alone, without its padding."""
    keep = cached.real[row, 0]
    by_key = {name: getattr(cached, name)[row : row + 1, :, keep] for name in ("keys", "values", "positions", "real")}
    assert cached.queries is not None
    assert cached.query_real is not None
    assert cached.query_positions is not None
    assert cached.received is not None
    asked = cached.query_real[row]
    return made_up(
        **by_key,
        length=cached.length[row : row + 1],
        prompt_length=cached.prompt_length[row : row + 1],
        seeds=cached.seeds[row : row + 1],
        queries=cached.queries[row : row + 1, :, asked],
        query_positions=cached.query_positions[row : row + 1, asked],
        query_real=cached.query_real[row : row + 1, asked],
        received=cached.received[row : row + 1, :, keep],
    )
