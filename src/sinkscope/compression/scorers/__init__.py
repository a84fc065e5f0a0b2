"""Scorers, each a small frozen dataclass: what a cached key is worth."""

from sinkscope.compression.scorers.base import SCORERS, CachedLayer, Rotation, Scorer, make_scorer, read_scorer, scorer
from sinkscope.compression.scorers.by_key import HighKeyNorm, KeyDiff, KeyNorm, Protect, Random, Streaming, ValueNorm
from sinkscope.compression.scorers.by_query import ExpectedAttention, ReceivedAttention, Sinks, SnapKV, SparseDLLM

__all__ = [
    "SCORERS",
    "CachedLayer",
    "ExpectedAttention",
    "HighKeyNorm",
    "KeyDiff",
    "KeyNorm",
    "Protect",
    "Random",
    "ReceivedAttention",
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
