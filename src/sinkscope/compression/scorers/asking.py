"""The attention that some queries pay to cached keys, for scorers that look at queries."""

import torch

from sinkscope.compression.scorers.base import CachedLayer, by_group


def last_real(real: torch.Tensor, count: int) -> torch.Tensor:
    """Places (batch, query) of the last `count` real queries of each row, in order; others before them where a row has
    fewer. real (batch, query) boolean."""
    return real.long().argsort(dim=-1, stable=True)[:, -count:]


def taken(queries: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Queries (batch, head, query, dim) at places (batch, query)."""
    return queries.gather(2, places[:, None, :, None].expand(-1, queries.shape[1], -1, queries.shape[-1]))


def last_queries(cached: CachedLayer, count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The last `count` queries (batch, head, query, dim), their positions and which are real, (batch, query) each.

    Of each row its own: padding after a context does not push out a short question's.
    """
    assert cached.queries is not None
    assert cached.query_positions is not None
    assert cached.query_real is not None
    last = last_real(cached.query_real, count)
    return taken(cached.queries, last), cached.query_positions.gather(-1, last), cached.query_real.gather(-1, last)


def grouped_scores(queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Products (batch, head, query, key) of queries and the keys of their group, float64."""
    grouped = by_group(queries.double(), keys.shape[1])  # (batch, kv_head, group, query, dim)
    products = torch.einsum("bhgqd,bhkd->bhgqk", grouped, keys.detach().double())
    return products.flatten(1, 2)


def attention_of(
    cached: CachedLayer, queries: torch.Tensor, positions: torch.Tensor, counted: torch.Tensor
) -> torch.Tensor:
    """Mean attention (batch, head, key) float64 over the queries that are `counted` (batch, query).

    A query of a causal model sees keys up to its own position.
    """
    groups = queries.shape[1] // cached.keys.shape[1]
    scores = grouped_scores(queries, cached.keys) * cached.scale
    hidden = ~cached.real.repeat_interleave(groups, dim=1).unsqueeze(2)
    if cached.causal:
        of_keys = cached.positions.repeat_interleave(groups, dim=1).unsqueeze(2)
        hidden = hidden | (of_keys > positions[:, None, :, None])
    attention = scores.masked_fill(hidden, -torch.inf).softmax(-1).nan_to_num(0)
    weights = counted / counted.sum(-1, keepdim=True).clamp(min=1)
    return torch.einsum("bhqk,bq->bhk", attention, weights.to(attention.dtype))
