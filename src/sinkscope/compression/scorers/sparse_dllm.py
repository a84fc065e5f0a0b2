"""Keep the keys that a block's mean query scores highest, and their neighbours (Sparse-dLLM, 2508.02558).

    importance of key i = max over neighbours j of mean_heads( mean_queries(q) . k_j )

Raw scores, no softmax; one order for all key heads. In a block cache the queries are the block's; an autoregressive
model takes the last `last` queries.

Where it misleads: the mean of queries is a query that nobody asks.
"""

from dataclasses import dataclass

import torch

from sinkscope.compression.scorers.asking import grouped_scores, last_queries
from sinkscope.compression.scorers.base import CachedLayer, Scorer, over_neighbours, told_apart
from sinkscope.compression.scorers.registry import check_whole, scorer
from sinkscope.errors import UserError


@scorer("sparse-dllm")
@dataclass(frozen=True)
class SparseDLLM(Scorer):
    """Keys near the mean of the last `last` queries stay, the highest of `kernel` neighbours counting (odd)."""

    kernel: int = 3
    last: int = 32

    needs_queries = True

    def __post_init__(self) -> None:
        check_whole("last of scorer 'sparse-dllm'", self.last, 1)
        check_whole("kernel of scorer 'sparse-dllm'", self.kernel, 1)
        if self.kernel % 2 == 0:
            raise UserError(f"kernel of scorer 'sparse-dllm' must be odd, got {self.kernel}; use {self.kernel + 1}")
        object.__setattr__(self, "remembers", self.last)

    def importance(self, cached: CachedLayer) -> torch.Tensor:
        assert cached.queries is not None
        block = cached.queries.shape[2]
        queries, _, counted = last_queries(cached, self.last if cached.causal else block)
        weights = counted.double() / counted.sum(-1, keepdim=True).clamp(min=1)
        mean = torch.einsum("bhqd,bq->bhd", queries.double(), weights).unsqueeze(2)
        by_head = grouped_scores(mean, cached.keys).squeeze(2)  # (batch, head, key)
        real = cached.real[:, :1]
        highest = over_neighbours(self._highest, by_head.mean(1, keepdim=True).masked_fill(~real, -torch.inf), real)
        return told_apart(highest, real, signed=True).expand(-1, cached.keys.shape[1], -1)

    def _highest(self, values: torch.Tensor) -> torch.Tensor:
        """Moving maximum over the keys (batch, 1, key)."""
        return torch.nn.functional.max_pool1d(values, self.kernel, stride=1, padding=self.kernel // 2)
