"""Scorers that look at keys, values and places alone: no queries, no attention, so any filled cache will do.

`Protect` goes around any scorer.
"""

from dataclasses import dataclass, field
from typing import Any

import torch

from sinkscope.compression.scorers.base import CachedLayer, Scorer, check_whole, norms, read_scorer, scorer, told_apart
from sinkscope.errors import UserError
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


@dataclass(frozen=True)
class Protect(Scorer):
    """A scorer, or the name of one, around which some tokens are never dropped, whatever it says of them.

        Protect(KeyNorm(), first=4, recent=16)
        Protect(Random(), first=8, prompt_end=8)        # random, but the prompt keeps its ends

    first: of each row. recent: the latest of each row at the time of dropping; in a block cache the last before the
    block. prompt_end: the last of the prompt, which while the model writes are no longer the recent ones; a number as
    large as the prompt protects all of it. They are kept by their place, not by a high score: a budget that is smaller
    than what is protected is refused.
    """

    scorer: Scorer | str = field(default_factory=KeyNorm)
    first: int = 0
    recent: int = 0
    prompt_end: int = 0

    def __post_init__(self) -> None:
        for name in ("first", "recent", "prompt_end"):
            check_whole(f"{name} of Protect", getattr(self, name), 0)
        if isinstance(self.scorer, str):
            object.__setattr__(self, "scorer", read_scorer(self.scorer))
        if not isinstance(self.scorer, Scorer) or isinstance(self.scorer, Protect):
            raise UserError(f"Protect goes around one scorer that protects nothing yet, got {self.scorer!r}")
        for name in ("name", "needs_queries", "needs_received", "needs_rotation", "one_order", "remembers"):
            object.__setattr__(self, name, getattr(self.scorer, name))

    @property
    def around(self) -> Scorer:
        """The scorer itself."""
        assert isinstance(self.scorer, Scorer)
        return self.scorer

    def importance(self, cached: CachedLayer) -> torch.Tensor:
        at, length = cached.positions, cached.length.view(-1, 1, 1)
        prompt = cached.prompt_length.view(-1, 1, 1)
        protected = (at < self.first) | ((at >= length - self.recent) & (at < length))
        protected |= (at >= prompt - self.prompt_end) & (at < prompt)
        # Below infinity, so that no scorer's own infinities stand beside it.
        least = self.around.importance(cached).clamp(max=torch.finfo(torch.float32).max)
        return least.masked_fill(protected, torch.inf)

    def protects(self, length: int, prompt_length: int) -> int:
        prompt_length = min(prompt_length, length)
        kept = set(range(min(self.first, length)))
        kept |= set(range(max(0, length - self.recent), length))
        kept |= set(range(max(0, prompt_length - self.prompt_end), prompt_length))
        return len(kept | set(range(self.around.protects(length, prompt_length))))

    def settings(self) -> dict[str, Any]:
        ends = {name: getattr(self, name) for name in ("first", "recent", "prompt_end")}
        return {**self.around.settings(), "protect": ends}
