"""Scorers that look at keys, values and places alone: no queries, no attention, so any filled cache will do."""

from dataclasses import dataclass

import torch

from sinkscope.compression.scorers.base import CachedLayer, Scorer, check_whole, norms, places, scorer, told_apart
from sinkscope.seeds import seed_from


@scorer("key-norm")
@dataclass(frozen=True)
class KeyNorm(Scorer):
    """Keep the keys with the lowest norm (Devoto et al., 2406.11430): no queries, no attention, one norm a key.

    The claim is that keys which receive much attention have low norms. Rotary positions do not change a norm.

    Where it misleads: the claim holds for some models and layers (the paper skips layers 0 and 1) and is weak on newer
    ones that normalise their keys. Read any result beside `random` and `high-key-norm`.
    """

    def importance(self, cached: CachedLayer) -> torch.Tensor:
        return -told_apart(norms(cached.keys), cached.real)


@scorer("high-key-norm")
@dataclass(frozen=True)
class HighKeyNorm(Scorer):
    """The control of `key-norm`: keep the keys with the highest norm instead.

    Where it misleads: it drops the first tokens with the rest of the low norms, so much of what it costs is what any
    method costs that drops them. `Protect(first=4)` around both tells the two apart.
    """

    def importance(self, cached: CachedLayer) -> torch.Tensor:
        return told_apart(norms(cached.keys), cached.real)


@scorer("value-norm")
@dataclass(frozen=True)
class ValueNorm(Scorer):
    """Keep the keys whose values have the highest norm: what they add to the output can be large.

    Where it misleads: attention sinks have small values and much attention, and are dropped first.
    """

    def importance(self, cached: CachedLayer) -> torch.Tensor:
        return told_apart(norms(cached.values), cached.real)


@scorer("key-diff")
@dataclass(frozen=True)
class KeyDiff(Scorer):
    """Keep the keys that differ most from the mean direction of all keys (KeyDiff, 2504.15364). No queries needed.

        importance of key i = - cos(k_i, mean_j k_j / |k_j|)

    Where it misleads: reported to struggle where a network normalises its keys.
    """

    def importance(self, cached: CachedLayer) -> torch.Tensor:
        unit = torch.nn.functional.normalize(cached.keys.detach().double(), dim=-1)
        unit = unit.masked_fill(~cached.real.unsqueeze(-1), 0)
        mean = torch.nn.functional.normalize(unit.sum(2, keepdim=True), dim=-1)
        return told_apart(-(unit * mean).sum(-1), cached.real, signed=True)


@scorer("random")
@dataclass(frozen=True)
class Random(Scorer):
    """Keep keys at random: what any other scorer must beat.

    Each layer, key head and position has one random number, drawn on the CPU from the row's seed: the same alone and in
    any batch, on any device, and at every later pruning, so that a token which stays has the same chance as one that
    comes.

    Where it misleads: what random dropping costs depends on whether the first tokens survive. Give several seeds, and
    look at `Protect(Random(), first=4)` too.
    """

    def importance(self, cached: CachedLayer) -> torch.Tensor:
        rows = [
            self._drawn(seed, cached.layer, positions)
            for seed, positions in zip(cached.seeds, cached.positions.cpu(), strict=True)
        ]
        return torch.stack(rows).to(cached.keys.device)

    def _drawn(self, seed: int, layer: int, positions: torch.Tensor) -> torch.Tensor:
        """Uniform numbers of one row at positions (kv_head, key)."""
        generator = torch.Generator().manual_seed(seed_from(f"random keys/{seed}/{layer}"))
        # One draw after the other, so that a position has the same number in a longer text.
        most = int(positions.max()) + 1 if positions.numel() else 0
        drawn = torch.rand(most, positions.shape[0], generator=generator)  # (position, kv_head)
        return drawn.T.gather(-1, positions.long())


@scorer("streaming")
@dataclass(frozen=True)
class Streaming(Scorer):
    """Keep the first tokens and the most recent ones (StreamingLLM, 2309.17453).

    Keys keep their own positions here; the paper counts positions inside the cache. In a block cache the recent keys
    are the block's neighbours, on both sides where the cache holds both. Nothing in the middle can be found again.
    """

    first: int = 4

    def __post_init__(self) -> None:
        check_whole("first of scorer 'streaming'", self.first, 0)

    def importance(self, cached: CachedLayer) -> torch.Tensor:
        return (-cached.distance.float()).masked_fill(cached.positions < self.first, torch.inf)


@scorer("lagkv")
@dataclass(frozen=True)
class LagKV(Scorer):
    """Keep the tokens whose keys and values stand out from the chunk of tokens that follows (LagKV, 2504.04704).

    After the `first` tokens the text is cut into chunks of `lag` tokens. Dimension by dimension, a chunk's keys are
    scaled by the smallest and largest of the chunk after it; a token's deviation over the dimensions, softmax over its
    chunk, is averaged over keys and values, and the tokens of each chunk are ranked by it. So every chunk keeps as
    large a share. The first tokens stay, then the last chunk and what is left over, the latest first. A text too short
    for two chunks keeps its ends.

    Where it misleads: the chunks are counted from the text's beginning, so one token more moves none of them, one less
    at the beginning all.
    """

    first: int = 4
    lag: int = 128

    def __post_init__(self) -> None:
        check_whole("first of scorer 'lagkv'", self.first, 0)
        check_whole("lag of scorer 'lagkv'", self.lag, 2)

    def importance(self, cached: CachedLayer) -> torch.Tensor:
        batch, heads, keys = cached.real.shape
        held = cached.real.sum(-1, keepdim=True)
        chunks = max(0, keys - self.first) // self.lag
        # What is real first, so that chunks lie alike in all rows and heads.
        order = (~cached.real).long().argsort(dim=-1, stable=True)
        rank = torch.arange(keys, device=order.device).expand(batch, heads, -1)
        ranked = 1 + (rank + 1) / (held + 1)  # the latest first, above every rank within a chunk
        if chunks > 1:
            end = self.first + chunks * self.lag
            parts = [self._stands_out(one, order[..., self.first : end]) for one in (cached.keys, cached.values)]
            worth = told_apart((parts[0] + parts[1]) / 2, torch.ones_like(parts[0], dtype=torch.bool))
            # Of equals the one further left stays, so places from below are counted from the right.
            low = (self.lag - 1 - places(worth, torch.ones_like(worth, dtype=torch.bool))) / self.lag
            judged = rank[..., self.first : end - self.lag]
            has_next = self.first + ((judged - self.first) // self.lag + 2) * self.lag <= held
            inside = ranked[..., self.first : end - self.lag]
            ranked[..., self.first : end - self.lag] = torch.where(has_next, low.flatten(2), inside)
        ranked = ranked.masked_fill(rank < self.first, torch.inf)
        return torch.zeros_like(ranked).scatter(-1, order, ranked).float()

    def _stands_out(self, states: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
        """(batch, kv_head, chunk, token) float64 of states (batch, kv_head, key, dim) in chunks but the last."""
        dims = states.shape[-1]
        chunks = states.detach().double().gather(2, order.unsqueeze(-1).expand(-1, -1, -1, dims))
        chunks = chunks.view(*chunks.shape[:2], -1, self.lag, dims)
        low, high = chunks[:, :, 1:].amin(3, keepdim=True), chunks[:, :, 1:].amax(3, keepdim=True)
        span = high - low
        flat = span <= 1e-4 * torch.maximum(low.abs(), high.abs())  # a dimension that does not vary says nothing
        scaled = ((chunks[:, :, :-1] - low) / span).masked_fill(flat, 0)
        spread: torch.Tensor = scaled.std(-1).softmax(-1)
        return spread
