"""Keep the keys that have received most attention so far (H2O, 2306.14048, without its window of recent keys).

Attention is summed over all real queries since the text began, divided by the number of queries that could see the key
(in a causal model later keys are seen by fewer), and averaged over the query heads that share a key head. It comes from
the watcher: run it inside `with ss.watch(model):`.

Where it misleads: what was asked so far is not what will be asked. Of the last key of a causal model there is one query
alone, its own: `Protect(recent=...)` keeps the newest from being judged by so little.
"""

from dataclasses import dataclass

import torch

from sinkscope.compression.scorers.base import CachedLayer, Scorer, mean_over_group, told_apart
from sinkscope.compression.scorers.registry import scorer


@scorer("received-attention")
@dataclass(frozen=True)
class ReceivedAttention(Scorer):
    """Keys that received much stay."""

    needs_received = True

    def importance(self, cached: CachedLayer) -> torch.Tensor:
        assert cached.received is not None
        received = mean_over_group(cached.received.float(), cached.keys.shape[1])
        seen_by = (
            cached.length.view(-1, 1, 1) - cached.positions if cached.causal else torch.ones_like(cached.positions)
        )
        return told_apart(received / seen_by.clamp(min=1), cached.real)
