"""Which masked positions are committed first: one small rule each, found by name.

A rule sees the probabilities of the candidates and gives each a score; the highest are committed. Names and formulas
follow LLaDA (`low_confidence`, `random`) and Dream (`maskgit_plus`, `topk_margin`, `entropy`); see METHODS section 2.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """The masked positions that may be committed now, all rows of the batch in one list."""

    probabilities: torch.Tensor  # (candidate, token) float32
    tokens: torch.Tensor  # (candidate,) the token predicted for each
    uniform: torch.Tensor  # (candidate,) float64 noise in [0, 1)


class Confidence(ABC):
    """A rule that scores candidates."""

    is_probability: ClassVar[bool] = False
    """Whether scores lie between 0 and 1, so that a threshold means something."""

    @abstractmethod
    def score(self, candidates: Candidates) -> torch.Tensor:
        """Scores, (candidate,); the highest are committed first."""


class MaxProb(Confidence):
    """Probability of the predicted token (LLaDA `low_confidence`, Dream `maskgit_plus`)."""

    is_probability = True

    def score(self, candidates: Candidates) -> torch.Tensor:
        return candidates.probabilities.gather(-1, candidates.tokens.unsqueeze(-1)).squeeze(-1)


class Margin(Confidence):
    """Distance between the two highest probabilities (Dream `topk_margin`)."""

    is_probability = True

    def score(self, candidates: Candidates) -> torch.Tensor:
        best = candidates.probabilities.topk(2, dim=-1).values
        return best[..., 0] - best[..., 1]


class NegativeEntropy(Confidence):
    """Negative entropy of the prediction, in nats (Dream `entropy`)."""

    def score(self, candidates: Candidates) -> torch.Tensor:
        entropy: torch.Tensor = torch.special.entr(candidates.probabilities).sum(-1)
        return -entropy


class Random(Confidence):
    """A random order (LLaDA `random`; Dream `origin` in its mean)."""

    def score(self, candidates: Candidates) -> torch.Tensor:
        return candidates.uniform.to(candidates.probabilities.device)


CONFIDENCE: dict[str, Confidence] = {
    "max-prob": MaxProb(),
    "margin": Margin(),
    "entropy": NegativeEntropy(),
    "random": Random(),
}
