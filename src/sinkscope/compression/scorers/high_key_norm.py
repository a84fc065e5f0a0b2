"""The control of `key-norm`: keep the keys with the highest norm instead.

Where it misleads: it drops the first tokens with the rest of the low norms, so much of what it costs is what any method
costs that drops them. `Protect(first=4)` around both tells the two apart.
"""

from dataclasses import dataclass

import torch

from sinkscope.compression.scorers.base import CachedLayer, Scorer, norms, told_apart
from sinkscope.compression.scorers.registry import scorer


@scorer("high-key-norm")
@dataclass(frozen=True)
class HighKeyNorm(Scorer):
    """High key norms stay."""

    def importance(self, cached: CachedLayer) -> torch.Tensor:
        return told_apart(norms(cached.keys), cached.real)
