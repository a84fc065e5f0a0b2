"""Protect tokens from being dropped, whatever a scorer says of them.

    Protect(KeyNorm(), first=4, recent=16)
    Protect(Random(), first=8, prompt_end=8)        # random, but the prompt keeps its ends

Protected keys are kept by their place, not by a high score: a budget that is smaller than what is protected is refused.
"""

from dataclasses import dataclass, field
from typing import Any

import torch

from sinkscope.compression.scorers.base import CachedLayer, Scorer
from sinkscope.compression.scorers.key_norm import KeyNorm
from sinkscope.compression.scorers.registry import check_whole, make_scorer
from sinkscope.errors import UserError


@dataclass(frozen=True)
class Protect(Scorer):
    """A scorer, or the name of one, around which some tokens always stay.

    first: of each row. recent: the latest of each row at the time of dropping; in a block cache the last before the
    block. prompt_end: the last of the prompt,
    which while the model writes are no longer the recent ones; a number as large as the prompt protects all of it.
    """

    scorer: Scorer | str = field(default_factory=KeyNorm)
    first: int = 0
    recent: int = 0
    prompt_end: int = 0

    def __post_init__(self) -> None:
        for name in ("first", "recent", "prompt_end"):
            check_whole(f"{name} of Protect", getattr(self, name), 0)
        if isinstance(self.scorer, str):
            object.__setattr__(self, "scorer", make_scorer(self.scorer))
        if not isinstance(self.scorer, Scorer) or isinstance(self.scorer, Protect):
            raise UserError(f"Protect goes around one scorer that protects nothing yet, got {self.scorer!r}")
        for name in ("name", "needs_queries", "needs_received", "needs_rotation", "remembers"):
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
