"""Keep the keys with the lowest norm (Devoto et al., 2406.11430): no queries, no attention, one norm a key.

The claim is that keys which receive much attention have low norms. Rotary positions do not change a norm.

Where it misleads: the claim holds for some models and layers (the paper skips layers 0 and 1) and is weak on newer ones
that normalise their keys. Read any result beside `random` and `high-key-norm`.
"""

from dataclasses import dataclass

import torch

from sinkscope.compression.scorers.base import CachedLayer, Scorer, norms, told_apart
from sinkscope.compression.scorers.registry import scorer


@scorer("key-norm")
@dataclass(frozen=True)
class KeyNorm(Scorer):
    """Low key norms stay."""

    def importance(self, cached: CachedLayer) -> torch.Tensor:
        return -told_apart(norms(cached.keys), cached.real)
