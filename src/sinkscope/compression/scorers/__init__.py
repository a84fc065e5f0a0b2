"""Scorers, each a small frozen dataclass: what a cached key is worth."""

from sinkscope.compression.scorers.around import BlockWise, ChunkKV, Protect, Rerotated
from sinkscope.compression.scorers.base import SCORERS, CachedLayer, Rotation, Scorer, make_scorer, read_scorer, scorer
from sinkscope.compression.scorers.by_key import HighKeyNorm, KeyDiff, KeyNorm, LagKV, Random, Streaming, ValueNorm
from sinkscope.compression.scorers.by_query import (
    TOVA,
    ExpectedAttention,
    KVzip,
    MaskQueries,
    ReceivedAttention,
    Sinks,
    SnapKV,
    SparseDLLM,
)
from sinkscope.compression.scorers.press import Press

__all__ = [
    "SCORERS",
    "TOVA",
    "BlockWise",
    "CachedLayer",
    "ChunkKV",
    "ExpectedAttention",
    "HighKeyNorm",
    "KVzip",
    "KeyDiff",
    "KeyNorm",
    "LagKV",
    "MaskQueries",
    "Press",
    "Protect",
    "Random",
    "ReceivedAttention",
    "Rerotated",
    "Rotation",
    "Scorer",
    "Sinks",
    "SnapKV",
    "SparseDLLM",
    "Streaming",
    "ValueNorm",
    "make_scorer",
    "read_scorer",
    "scorer",
]
