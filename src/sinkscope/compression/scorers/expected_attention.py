"""Keep the keys that queries still to come are expected to attend to (expected attention, 2510.00636).

Queries before rotation are taken to be normal, with the mean and covariance of those seen (without the first `first`
tokens, which are outliers). Rotated by the mean rotation of the next `ahead` positions they have a mean mu and a
covariance C, and the expected unnormalised attention of a key is known in closed form:

    a_i = softmax_i( mu . k_i / sqrt(d) + k_i' C k_i / (2 d) )        importance = (mean over the group of a_i) |v_i|

The first `first` tokens stay. In a block cache the queries seen are the block's, and so are the positions to come.

Where it misleads: it costs a product with a d x d matrix for every key. While a model decodes, only the last queries
are known (`remembers`), not those of the whole text.
"""

from dataclasses import dataclass

import torch

from sinkscope.compression.scorers.base import CachedLayer, Scorer, by_group, mean_over_group, norms, told_apart
from sinkscope.compression.scorers.registry import check_whole, scorer

_REMEMBERED = 256


@scorer("expected-attention")
@dataclass(frozen=True)
class ExpectedAttention(Scorer):
    """Keys that the next `ahead` queries should attend to stay, and the `first` tokens."""

    first: int = 4
    ahead: int = 512

    needs_queries = True
    needs_rotation = True
    remembers = _REMEMBERED

    def __post_init__(self) -> None:
        check_whole("first of scorer 'expected-attention'", self.first, 0)
        check_whole("ahead of scorer 'expected-attention'", self.ahead, 1)

    def importance(self, cached: CachedLayer) -> torch.Tensor:
        assert cached.queries is not None
        mean, covariance = self._statistics(cached)
        keys = cached.keys.detach().float()
        kv_heads = keys.shape[1]
        linear = torch.einsum("bhgd,bhkd->bhgk", by_group(mean, kv_heads), keys)
        spread = by_group(covariance, kv_heads)
        quadratic = (torch.einsum("bhkd,bhgde->bhgke", keys, spread) * keys.unsqueeze(2)).sum(-1)
        scores = linear * cached.scale + quadratic * cached.scale**2 / 2  # (batch, kv_head, group, key)
        first = cached.positions < self.first
        hidden = (~cached.real | first).unsqueeze(2)
        attention = scores.masked_fill(hidden, -torch.inf).softmax(-1).nan_to_num(0)
        importance = mean_over_group(attention.flatten(1, 2), kv_heads) * norms(cached.values)
        return told_apart(importance, cached.real & ~first).masked_fill(first, torch.inf)

    def _statistics(self, cached: CachedLayer) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean (batch, head, dim) and covariance (batch, head, dim, dim) of queries at the positions to come."""
        assert cached.queries is not None
        assert cached.query_positions is not None
        assert cached.query_real is not None
        assert cached.rotation is not None
        plain = cached.rotation.undone(cached.queries.float(), cached.query_positions)
        counted = cached.query_real & (cached.query_positions >= self.first)
        # A row with no later query than the first tokens has only those to go by.
        counted = torch.where(counted.any(-1, keepdim=True), counted, cached.query_real)
        weights = (counted / counted.sum(-1, keepdim=True).clamp(min=1)).float()
        mean = torch.einsum("bhqd,bq->bhd", plain, weights).unsqueeze(2)
        centred = plain - mean
        covariance = torch.einsum("bhqd,bhqe,bq->bhde", centred, centred, weights)
        rotation, first = cached.rotation, cached.length
        ahead = self.ahead if cached.causal else cached.block_length
        once = rotation.averaged(covariance, first, ahead)
        return rotation.averaged(mean, first, ahead).squeeze(2), rotation.averaged(once.mT, first, ahead).mT
