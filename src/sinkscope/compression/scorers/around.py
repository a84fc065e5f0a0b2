"""Scorers that go around another: they protect tokens, keep chunks, go block by block, or close the gaps.

    Protect(KeyNorm(), first=4)            ChunkKV("snapkv", length=20)            Rerotated("streaming:first=4")

In a spec the one inside is named without parameters of its own: "chunk-kv:of=key-diff,length=10".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from sinkscope.compression.scorers.base import (
    CachedLayer,
    Scorer,
    check_whole,
    make_scorer,
    places,
    read_scorer,
    scorer,
    told_apart,
)
from sinkscope.compression.scorers.by_key import KeyNorm
from sinkscope.errors import UserError


def take_over(outer: Scorer, inner: Scorer) -> None:
    """What the scorer inside needs is needed around it."""
    for name in ("needs_queries", "needs_received", "needs_rotation", "one_order", "rerotates", "rereads", "remembers"):
        object.__setattr__(outer, name, getattr(inner, name) or getattr(type(outer), name))


@dataclass(frozen=True)
class Around(Scorer):
    """A scorer that changes the order of another.

    of: a scorer, its name or its settings. Raises `UserError` for what is none, and for one that protects tokens: that
    goes around everything else.
    """

    of: Scorer | str | Mapping[str, Any] = "key-norm"

    def __post_init__(self) -> None:
        if isinstance(self.of, str):
            object.__setattr__(self, "of", read_scorer(self.of))
        elif isinstance(self.of, Mapping):
            settings = dict(self.of)
            object.__setattr__(self, "of", make_scorer(settings.pop("scorer"), **settings))
        if not isinstance(self.of, Scorer) or isinstance(self.of, Protect):
            raise UserError(f"scorer {self.name!r} goes around a scorer that protects nothing, got {self.of!r}")
        take_over(self, self.of)

    @property
    def inner(self) -> Scorer:
        """The scorer itself."""
        assert isinstance(self.of, Scorer)
        return self.of

    def importance(self, cached: CachedLayer) -> torch.Tensor:
        return self.inner.importance(cached)

    def protects(self, length: int, prompt_length: int) -> int:
        return self.inner.protects(length, prompt_length)

    def settings(self) -> dict[str, Any]:
        own = {name: value for name, value in vars(self).items() if name in self.__dataclass_fields__ and name != "of"}
        return {"scorer": self.name, "of": self.inner.settings(), **own}


@scorer("chunk-kv")
@dataclass(frozen=True)
class ChunkKV(Around):
    """Keep whole chunks of `length` tokens, those whose tokens are most important on average (ChunkKV, 2502.00299).

    Importance is summed over the key heads, so all of a layer keep the same tokens. Of the last chunk that the budget
    reaches, the first tokens stay; kvpress drops it whole.
    """

    of: Scorer | str | Mapping[str, Any] = "snapkv"
    length: int = 20

    one_order = True

    def __post_init__(self) -> None:
        check_whole("length of scorer 'chunk-kv'", self.length, 1)
        super().__post_init__()

    def importance(self, cached: CachedLayer) -> torch.Tensor:
        real = cached.real[:, 0]
        worth = self.inner.importance(cached).double().masked_fill(~cached.real, 0).sum(1)  # (batch, key)
        chunk = (real.long().cumsum(-1) - 1).clamp(min=0) // self.length
        total = torch.zeros_like(worth).scatter_add(-1, chunk, worth.masked_fill(~real, 0))
        tokens = torch.zeros_like(worth).scatter_add(-1, chunk, real.double()).clamp(min=1)
        mean = (total / tokens).gather(-1, chunk).unsqueeze(1)
        return told_apart(mean, real.unsqueeze(1)).expand_as(cached.real)


@scorer("block-wise")
@dataclass(frozen=True)
class BlockWise(Around):
    """Go through the text block by block, and keep after each block as many keys as will stay in the end.

    As if a long prompt were read in blocks of `block` tokens with a cache that never grows beyond its budget (KeyDiff,
    2504.15364): a scorer that compares keys with one another never sees them all. The text itself is read at once, so
    what keys are is not changed. Queries and received attention that the scorer asks for are those of the whole text.
    A budget that differs by head asks for importance first, so under one this is the scorer inside.
    """

    of: Scorer | str | Mapping[str, Any] = "key-diff"
    block: int = 128

    def __post_init__(self) -> None:
        check_whole("block of scorer 'block-wise'", self.block, 1)
        super().__post_init__()

    def importance(self, cached: CachedLayer) -> torch.Tensor:
        if cached.counts is None:
            return self.inner.importance(cached)
        counts = cached.counts.expand(cached.real.shape[:2]).unsqueeze(-1)
        rank = cached.real.long().cumsum(-1) - 1
        stays = cached.real & (rank < counts)
        last = int((cached.real.sum(-1, keepdim=True) - counts).max()) if counts.numel() else 0
        for start in range(0, last, self.block):
            here = (rank >= counts + start) & (rank < counts + start + self.block) & cached.real
            there = stays | here
            stays = (places(self.inner.importance(replace(cached, real=there)), there) < counts) & there
        return stays.float()


@scorer("rerotated")
@dataclass(frozen=True)
class Rerotated(Around):
    """Rotate the keys that stay to the positions right before what follows: distances are those inside the cache.

    StreamingLLM as in its paper (2309.17453), which counts positions in the cache; kvpress' KeyRerotationPress. Without
    it a key keeps its distance to what follows, however much between them was dropped. The network must rotate keys
    alike in all layers, see the whole text, and be causal.

    Where it misleads: what was near in the cache may have been far in the text. Traces and masks still speak of
    positions in the text.
    """

    of: Scorer | str | Mapping[str, Any] = "streaming"

    needs_rotation = True
    rerotates = True


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
        object.__setattr__(self, "name", self.scorer.name)
        take_over(self, self.scorer)

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
