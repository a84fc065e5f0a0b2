"""Scorers, each a small frozen dataclass: what a cached key is worth."""

from sinkscope.compression.scorers.base import CachedLayer, Rotation, Scorer
from sinkscope.compression.scorers.expected_attention import ExpectedAttention
from sinkscope.compression.scorers.high_key_norm import HighKeyNorm
from sinkscope.compression.scorers.key_diff import KeyDiff
from sinkscope.compression.scorers.key_norm import KeyNorm
from sinkscope.compression.scorers.random import Random
from sinkscope.compression.scorers.received_attention import ReceivedAttention
from sinkscope.compression.scorers.registry import SCORERS, make_scorer
from sinkscope.compression.scorers.snapkv import SnapKV
from sinkscope.compression.scorers.sparse_dllm import SparseDLLM
from sinkscope.compression.scorers.streaming import Streaming
from sinkscope.compression.scorers.value_norm import ValueNorm
from sinkscope.discovery import import_modules

import_modules(__path__, __name__)

__all__ = [
    "SCORERS",
    "CachedLayer",
    "ExpectedAttention",
    "HighKeyNorm",
    "KeyDiff",
    "KeyNorm",
    "Random",
    "ReceivedAttention",
    "Rotation",
    "Scorer",
    "SnapKV",
    "SparseDLLM",
    "Streaming",
    "ValueNorm",
    "make_scorer",
]
