"""Keep the keys that the last queries attend to, and their neighbours (SnapKV, 2404.14469).

The attention that the last `window` queries pay is averaged over them, smoothed over `kernel` neighbouring keys, and
averaged over the query heads that share a key head. The window's own keys stay, the most recent of them first. In a
block cache the queries are the last of the block, and attention is that among the keys outside it.

Where it misleads: it sees the question if the question is among the last queries. Compared with scorers that do not, it
is then ahead for that reason alone: compress the context before the question is read.
"""

from dataclasses import dataclass

import torch

from sinkscope.compression.scorers.asking import attention_of, last_queries
from sinkscope.compression.scorers.base import CachedLayer, Scorer, mean_over_group, over_neighbours, told_apart
from sinkscope.compression.scorers.registry import check_whole, scorer
from sinkscope.errors import UserError


@scorer("snapkv")
@dataclass(frozen=True)
class SnapKV(Scorer):
    """Keys that the last `window` queries attend to stay, smoothed over `kernel` keys (an odd number)."""

    window: int = 64
    kernel: int = 5

    needs_queries = True

    def __post_init__(self) -> None:
        check_whole("window of scorer 'snapkv'", self.window, 1)
        check_whole("kernel of scorer 'snapkv'", self.kernel, 1)
        if self.kernel % 2 == 0:
            raise UserError(f"kernel of scorer 'snapkv' must be odd, got {self.kernel}; use {self.kernel + 1}")
        object.__setattr__(self, "remembers", self.window)

    def importance(self, cached: CachedLayer) -> torch.Tensor:
        queries, positions, counted = last_queries(cached, self.window)
        start = cached.length.view(-1, 1, 1) - self.window
        # In a block cache the window's keys are the block's, which are not in question.
        in_window = (cached.positions >= start) & cached.causal
        by_head = attention_of(cached, queries, positions, counted)
        groups = by_head.shape[1] // cached.keys.shape[1]
        real, outside = (one.repeat_interleave(groups, dim=1) for one in (cached.real, cached.real & ~in_window))
        smooth = over_neighbours(self._smoothed, by_head.masked_fill(~outside, 0), real)
        importance = told_apart(mean_over_group(smooth, cached.keys.shape[1]), cached.real & ~in_window)
        # Attention is at most 1, so the window comes before everything else.
        return torch.where(in_window, 2 + (cached.positions - start).float(), importance)

    def _smoothed(self, values: torch.Tensor) -> torch.Tensor:
        """Moving average over the keys (batch, head, key)."""
        return torch.nn.functional.avg_pool1d(values, self.kernel, stride=1, padding=self.kernel // 2)
