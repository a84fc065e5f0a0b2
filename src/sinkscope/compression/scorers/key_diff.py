"""Keep the keys that differ most from the mean direction of all keys (KeyDiff, 2504.15364). No queries needed.

    importance of key i = - cos(k_i, mean_j k_j / |k_j|)

Where it misleads: reported to struggle where a network normalises its keys.
"""

from dataclasses import dataclass

import torch

from sinkscope.compression.scorers.base import CachedLayer, Scorer, told_apart
from sinkscope.compression.scorers.registry import scorer


@scorer("key-diff")
@dataclass(frozen=True)
class KeyDiff(Scorer):
    """Keys unlike the others stay."""

    def importance(self, cached: CachedLayer) -> torch.Tensor:
        unit = torch.nn.functional.normalize(cached.keys.detach().double(), dim=-1)
        unit = unit.masked_fill(~cached.real.unsqueeze(-1), 0)
        mean = torch.nn.functional.normalize(unit.sum(2, keepdim=True), dim=-1)
        return told_apart(-(unit * mean).sum(-1), cached.real, signed=True)
