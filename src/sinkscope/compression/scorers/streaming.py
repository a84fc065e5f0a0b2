"""Keep the first tokens and the most recent ones (StreamingLLM, 2309.17453).

Keys keep their own positions here; the paper counts positions inside the cache. In a block cache the recent keys are
the block's neighbours, on both sides where the cache holds both. Nothing in the middle can be found again.
"""

from dataclasses import dataclass

import torch

from sinkscope.compression.scorers.base import CachedLayer, Scorer
from sinkscope.compression.scorers.registry import check_whole, scorer


@scorer("streaming")
@dataclass(frozen=True)
class Streaming(Scorer):
    """The `first` tokens stay, then the most recent ones."""

    first: int = 4

    def __post_init__(self) -> None:
        check_whole("first of scorer 'streaming'", self.first, 0)

    def importance(self, cached: CachedLayer) -> torch.Tensor:
        return (-cached.distance.float()).masked_fill(cached.positions < self.first, torch.inf)
