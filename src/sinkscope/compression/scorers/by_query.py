"""Scorers that look at attention or at queries: what keys have received, or would receive.

A causal model's queries see keys up to their own position; a block's see all keys.
"""

from dataclasses import dataclass

import torch

from sinkscope.compression.scorers.base import (
    CachedLayer,
    Scorer,
    by_group,
    check_whole,
    mean_over_group,
    norms,
    over_neighbours,
    scorer,
    told_apart,
)
from sinkscope.errors import UserError

_TOGETHER = 64
"""Queries whose attention is held at once."""


@scorer("received-attention")
@dataclass(frozen=True)
class ReceivedAttention(Scorer):
    """Keep the keys that have received most attention so far (H2O, 2306.14048, without its window of recent keys).

    Attention is summed over all real queries since the text began, divided by the number of queries that could see the
    key (in a causal model later keys are seen by fewer), and averaged over the query heads that share a key head. It
    comes from the watcher: run it inside `with ss.watch(model):`.

    Where it misleads: what was asked so far is not what will be asked. Of the last key of a causal model there is one
    query alone, its own: `Protect(recent=...)` keeps the newest from being judged by so little.
    """

    needs_received = True

    def importance(self, cached: CachedLayer) -> torch.Tensor:
        assert cached.received is not None
        received = mean_over_group(cached.received.float(), cached.keys.shape[1])
        length = cached.length.view(-1, 1, 1)
        seen_by = length - cached.positions if cached.causal else torch.ones_like(cached.positions)
        return told_apart(received / seen_by.clamp(min=1), cached.real)


@scorer("sinks")
@dataclass(frozen=True)
class Sinks(Scorer):
    """Keep the attention sinks, then the nearest tokens: `streaming` with found sinks in place of the first tokens.

    What a sink is, the budget says: `KeepSinks` has a rule, by which it counts, and then the sinks and the window stay,
    no key more or less. Under any other budget the rule is the published one (2510.15731: `excess`, epsilon 3 on scale
    `sum`), and sinks that are more than the budget keeps stay from the left.

    Received attention comes from the watcher: run it inside `with ss.watch(model):`.

    Where it misleads: sinks are found once, by all queries so far, those of the question too where it was read; a sink
    of later queries alone is gone. `ablate` marks sinks anew at every step, in an autoregressive model by the last
    query's row, so one epsilon calls other keys sinks there.
    """

    needs_received = True

    def importance(self, cached: CachedLayer) -> torch.Tensor:
        return (-cached.distance.float()).masked_fill(cached.sinks, 1)  # distances are at least 1


@scorer("snapkv")
@dataclass(frozen=True)
class SnapKV(Scorer):
    """Keep the keys that the last `window` queries attend to, and their neighbours (SnapKV, 2404.14469).

    The attention that the last `window` queries pay is averaged over them, smoothed over `kernel` neighbouring keys,
    and averaged over the query heads that share a key head. The window's own keys stay, the most recent of them first.
    In a block cache the queries are the last of the block, and attention is that among the keys outside it.

    Where it misleads: it sees the question if the question is among the last queries. Compared with scorers that do
    not, it is then ahead for that reason alone: compress the context before the question is read.
    """

    window: int = 64
    kernel: int = 5

    needs_queries = True

    def __post_init__(self) -> None:
        check_whole("window of scorer 'snapkv'", self.window, 1)
        _check_kernel(self.name, self.kernel)
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


@scorer("tova")
@dataclass(frozen=True)
class TOVA(Scorer):
    """Keep the keys that the last query attends to, averaged over all heads (TOVA, 2401.06104).

    One order for all key heads. The last key stays, as in kvpress. In a block cache the query is the block's last.

    Where it misleads: one query decides, and if the question was read, it is the question's.
    """

    needs_queries = True
    one_order = True
    remembers = 1

    def importance(self, cached: CachedLayer) -> torch.Tensor:
        attention = attention_of(cached, *last_queries(cached, 1)).mean(1, keepdim=True)
        importance = told_apart(attention, cached.real[:, :1]).expand(-1, cached.keys.shape[1], -1)
        own = (cached.positions == cached.length.view(-1, 1, 1) - 1) & cached.causal
        return importance.masked_fill(own, torch.inf)


@scorer("kvzip")
@dataclass(frozen=True)
class KVzip(Scorer):
    """Keep the keys that the model needs to repeat the context (KVzip, 2505.23416): no question is asked.

    The context is read a second time, after a request to repeat it. A key's importance is the most attention that any
    query of the second reading pays to it, in any query head of its key head. The `first` tokens stay. Only
    `compress_prefix` reads twice, for as much as a text twice as long costs. The paper shares the budget out among
    heads and layers: `AdaKV` does among the heads of a layer, as kvpress does with `layerwise=True`. A long context is
    repeated at once, where kvpress repeats it in chunks of 2,048 tokens.

    Where it misleads: what is needed to repeat a text word for word is not what is needed to answer about it.
    """

    first: int = 4

    needs_queries = True
    rereads = True

    def __post_init__(self) -> None:
        check_whole("first of scorer 'kvzip'", self.first, 0)

    def importance(self, cached: CachedLayer) -> torch.Tensor:
        assert cached.queries is not None
        assert cached.query_positions is not None
        assert cached.query_real is not None
        context = cached.prompt_length.view(-1, 1)
        again = cached.query_real & (cached.query_positions >= context)
        again = torch.where(again.any(-1, keepdim=True), again, cached.query_real)
        highest = torch.zeros_like(cached.real, dtype=torch.float64)
        for start in range(0, again.shape[1], _TOGETHER):
            one = slice(start, start + _TOGETHER)
            attention = attention_by_query(cached, cached.queries[:, :, one], cached.query_positions[:, one])
            attention = attention.masked_fill(~again[:, None, one, None], 0).amax(2)
            highest = torch.maximum(highest, by_group(attention, cached.keys.shape[1]).amax(2))
        importance = told_apart(highest, cached.real).masked_fill(cached.positions < self.first, torch.inf)
        return importance.masked_fill(cached.positions >= context.unsqueeze(-1), -torch.inf)


@scorer("mask-queries")
@dataclass(frozen=True)
class MaskQueries(Scorer):
    """Keep the keys that a block's queries attend to while all of it is masked, in its first pass.

    The mean over the block's queries and the query heads that share a key head: Mask-Voting of MaskKV (2510.09309), and
    what MAGE keeps for all later steps of a block (2602.14209), here by key head. An autoregressive model takes its
    last `last` queries. How MaskKV shares its budget out among layers and heads is not here: no code of it is public.
    The budgets that do so here are `AdaKV` and `PyramidKV`.

    Where it misleads: with a `dual` cache masks after the block are context too, and attend to it as much.
    """

    last: int = 32

    needs_queries = True

    def __post_init__(self) -> None:
        check_whole("last of scorer 'mask-queries'", self.last, 1)
        object.__setattr__(self, "remembers", self.last)

    def importance(self, cached: CachedLayer) -> torch.Tensor:
        assert cached.queries is not None
        asked = last_queries(cached, self.last if cached.causal else cached.queries.shape[2])
        return told_apart(mean_over_group(attention_of(cached, *asked), cached.keys.shape[1]), cached.real)


@scorer("sparse-dllm")
@dataclass(frozen=True)
class SparseDLLM(Scorer):
    """Keep the keys that a block's mean query scores highest, and their neighbours (Sparse-dLLM, 2508.02558).

        importance of key i = max over neighbours j of mean_heads( mean_queries(q) . k_j )

    Raw scores, no softmax; one order for all key heads. In a block cache the queries are the block's; an autoregressive
    model takes the last `last` queries.

    Where it misleads: the mean of queries is a query that nobody asks.
    """

    kernel: int = 3
    last: int = 32

    needs_queries = True
    one_order = True

    def __post_init__(self) -> None:
        check_whole("last of scorer 'sparse-dllm'", self.last, 1)
        _check_kernel(self.name, self.kernel)
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


@scorer("expected-attention")
@dataclass(frozen=True)
class ExpectedAttention(Scorer):
    """Keep the keys that queries still to come are expected to attend to (expected attention, 2510.00636).

    Queries before rotation are taken to be normal, with the mean and covariance of those seen (without the first
    `first` tokens, which are outliers). Rotated by the mean rotation of the next `ahead` positions they have a mean mu
    and a covariance C, and the expected unnormalised attention of a key is known in closed form:

        a_i = softmax_i( mu . k_i / sqrt(d) + k_i' C k_i / (2 d) )        importance = (mean over the group of a_i)
        |v_i|

    The first `first` tokens stay. In a block cache the queries seen are the block's, and so are the positions to come.

    Where it misleads: it costs a product with a d x d matrix for every key. While a model decodes, only the last
    queries are known (`remembers`), not those of the whole text.
    """

    first: int = 4
    ahead: int = 512

    needs_queries = True
    needs_rotation = True
    remembers = 256

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


def _check_kernel(name: str, kernel: int) -> None:
    check_whole(f"kernel of scorer {name!r}", kernel, 1)
    if kernel % 2 == 0:
        raise UserError(f"kernel of scorer {name!r} must be odd, got {kernel}; use {kernel + 1}")


def last_real(real: torch.Tensor, count: int) -> torch.Tensor:
    """Places (batch, query) of the last `count` real queries of each row, in order; others before them where a row has
    fewer. real (batch, query) boolean."""
    return real.long().argsort(dim=-1, stable=True)[:, -count:]


def at_queries(queries: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
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
    return at_queries(cached.queries, last), cached.query_positions.gather(-1, last), cached.query_real.gather(-1, last)


def grouped_scores(queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Products (batch, head, query, key) of queries and the keys of their group, float64."""
    grouped = by_group(queries.double(), keys.shape[1])  # (batch, kv_head, group, query, dim)
    products = torch.einsum("bhgqd,bhkd->bhgqk", grouped, keys.detach().double())
    return products.flatten(1, 2)


def attention_of(
    cached: CachedLayer, queries: torch.Tensor, positions: torch.Tensor, counted: torch.Tensor
) -> torch.Tensor:
    """Mean attention (batch, head, key) float64 over the queries that are `counted` (batch, query).

    A query of a causal model sees keys up to its own position. Soft caps and learned sinks of a model are left out, as
    in the published scorers: this is attention among the keys by their plain scores.
    """
    attention = attention_by_query(cached, queries, positions)
    weights = counted / counted.sum(-1, keepdim=True).clamp(min=1)
    return torch.einsum("bhqk,bq->bhk", attention, weights.to(attention.dtype))


def attention_by_query(cached: CachedLayer, queries: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Attention (batch, head, query, key) float64 of queries at positions (batch, query), as in `attention_of`."""
    groups = queries.shape[1] // cached.keys.shape[1]
    scores = grouped_scores(queries, cached.keys) * cached.scale
    hidden = ~cached.real.repeat_interleave(groups, dim=1).unsqueeze(2)
    if cached.causal:
        of_keys = cached.positions.repeat_interleave(groups, dim=1).unsqueeze(2)
        hidden = hidden | (of_keys > positions[:, None, :, None])
    return scores.masked_fill(hidden, -torch.inf).softmax(-1).nan_to_num(0)
