"""Keep the keys whose values have the highest norm: what they add to the output can be large.

Where it misleads: attention sinks have small values and much attention, and are dropped first.
"""

from dataclasses import dataclass

import torch

from sinkscope.compression.scorers.base import CachedLayer, Scorer, norms, told_apart
from sinkscope.compression.scorers.registry import scorer


@scorer("value-norm")
@dataclass(frozen=True)
class ValueNorm(Scorer):
    """High value norms stay."""

    def importance(self, cached: CachedLayer) -> torch.Tensor:
        return told_apart(norms(cached.values), cached.real)
