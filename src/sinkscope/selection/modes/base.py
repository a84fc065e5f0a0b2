"""What a mode is: scores, a threshold and a count in; which patches stay, and how gradients reach the scores, out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch

from sinkscope.ordering import ordered

TEMPERATURE = 1.0
"""Of the relaxation: how far from the threshold, in units of the score, a patch still feels the gradient."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Asked:
    """What a gate sees of a batch. Patches that are not `there` have been dropped before, or are padding."""

    scores: torch.Tensor
    """(batch, patch), higher is kept longer"""
    threshold: torch.Tensor | None
    """(batch, 1) on the scale of the scores; None for selectors that have none"""
    counts: torch.Tensor
    """(batch,) patches that the budget allows"""
    there: torch.Tensor
    """(batch, patch) boolean"""


@dataclass(frozen=True, eq=False, kw_only=True)
class Kept:
    """What a gate lets pass."""

    keep: torch.Tensor
    """(batch, patch) boolean"""
    weight: torch.Tensor | None = None
    """(batch, patch): what kept patches are multiplied by; None for nothing"""
    relaxed: torch.Tensor
    """(batch, patch) between 0 and 1, differentiable: how surely each patch is kept. Its mean is what training holds
    against the budget."""
    policy: torch.Tensor
    """(batch, patch): `keep` in value; in gradient, what attention would be with a little more or less of a patch"""


class Mode(ABC):
    """One way to honour a budget. A new one is a new file in this folder."""

    name: ClassVar[str]

    @abstractmethod
    def choose(self, asked: Asked) -> Kept:
        """Which of the patches that are there stay."""


def top(asked: Asked) -> torch.Tensor:
    """(batch, patch) boolean: the `counts` patches of the highest score, of equal ones the one further left."""
    scores = asked.scores.detach().masked_fill(~asked.there, torch.nan)
    order = ordered(scores)
    places = torch.arange(order.shape[-1], device=order.device).expand_as(order)
    rank = torch.empty_like(order).scatter_(-1, order, places)
    return (rank < asked.counts.to(rank.device).unsqueeze(-1)) & asked.there


def above(asked: Asked) -> torch.Tensor:
    """(batch, patch): sigmoid of the distance to the threshold, 0 for patches that are not there.

    Without a threshold the middle between the last score kept and the first dropped stands for it.
    """
    threshold = _between(asked) if asked.threshold is None else asked.threshold
    return torch.sigmoid((asked.scores - threshold) / TEMPERATURE) * asked.there


def straight_through(keep: torch.Tensor, relaxed: torch.Tensor) -> torch.Tensor:
    """`keep` in value, to the bit, `relaxed` in gradient (Bengio et al. 2013, arXiv 1308.3432)."""
    return keep.to(relaxed) + (relaxed - relaxed.detach())


def _between(asked: Asked) -> torch.Tensor:
    kept = top(asked)
    lowest = asked.scores.detach().masked_fill(~kept, torch.inf).amin(-1, keepdim=True)
    highest = asked.scores.detach().masked_fill(kept | ~asked.there, -torch.inf).amax(-1, keepdim=True)
    return torch.where(highest.isfinite(), (lowest + highest) / 2, lowest - 1)
