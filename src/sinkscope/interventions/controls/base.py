"""What a control is: a choice of other keys in place of the sinks, in every layer and head.

A claim about sinks holds only if masking the sinks costs more than masking a control.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch


@dataclass(frozen=True, kw_only=True, eq=False)
class Situation:
    """One layer of one pass, as a control sees it."""

    received: torch.Tensor
    """(batch, head, key) received attention by the map that the sinks were found in."""
    eligible: torch.Tensor
    """(batch, head, key) boolean: keys that may be cut at all. No padding, no key that the map did not have."""
    sinks: torch.Tensor
    """(batch, head, key) boolean: the keys in whose place others are wanted; all of them eligible."""
    classes: torch.Tensor
    """(batch, key) class of each key's token, index into `sinks.lexicon.CLASSES`; all 0 unless the control asks."""
    noise: torch.Tensor
    """(batch, head, key) uniform in [0, 1), the same for a prompt in any batch; all 0 unless the control asks."""
    now: Callable[[], torch.Tensor]
    """(batch, head, key) received attention in the very step, before any cut; costs a pass over the scores."""

    @property
    def candidates(self) -> torch.Tensor:
        """(batch, head, key) boolean: keys that may take a sink's place."""
        return self.eligible & ~self.sinks


class Control(ABC):
    """One way to choose. A new one is a new file in this folder: see `registry.py`."""

    name: ClassVar[str]
    noisy: ClassVar[bool]
    """Whether it draws at random."""
    by_class: ClassVar[bool] = False
    """Whether it needs the classes of tokens."""
    by_mass: ClassVar[bool] = False
    """Whether it is to hold as much attention as the sinks; else it is to be as many keys."""
    at_step: ClassVar[bool] = False
    """Whether attention is that of the very step, not that of the map in which the sinks were found."""

    @abstractmethod
    def choose(self, situation: Situation) -> torch.Tensor:
        """The keys to cut instead, (batch, head, key) boolean; candidates only."""


def lowest_ranked(order: torch.Tensor, candidates: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    """The `count` (batch, head) candidates that come first in ascending `order` (batch, head, key); ties to the left.

    All of them where there are fewer.
    """
    ranked = order.masked_fill(~candidates, torch.inf).argsort(dim=-1, stable=True)
    first = torch.arange(order.shape[-1], device=order.device) < count.unsqueeze(-1)
    return torch.zeros_like(candidates).scatter(-1, ranked, first) & candidates
