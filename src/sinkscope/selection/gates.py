"""What decides: a budget token that tells the network the share asked for, and gates that score patches.

A gate has two neurons. One scores each patch, a_i = w x_i + c; the other reads the threshold from the budget token,
t = u b + e. The published gate compares sigmoid(a_i) with sigmoid(t) (arXiv 2405.02330; METHODS section 4); what is
made of the two numbers is the mode's business (`modes`).
"""

from __future__ import annotations

import torch
from torch import nn

_SCORE_BIAS, _THRESHOLD_BIAS = 5.0, -5.0
"""At first everything is kept: sigmoid(5) lies far above sigmoid(-5)."""
_SPREAD = 0.02


class BudgetToken(nn.Module):
    """b(alpha) = alpha b1 + (1 - alpha) b2, one token an image."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.all = nn.Parameter(_SPREAD * torch.randn(width))
        self.none = nn.Parameter(_SPREAD * torch.randn(width))

    def forward(self, alpha: torch.Tensor) -> torch.Tensor:
        """alpha (batch,) -> (batch, 1, width)."""
        share = alpha.to(self.all).view(-1, 1, 1)
        return share * self.all + (1 - share) * self.none


class Gate(nn.Module):
    """Scores of patches and the threshold for them, both before the sigmoid."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.score = nn.Linear(width, 1)
        self.threshold = nn.Linear(width, 1)
        nn.init.constant_(self.score.bias, _SCORE_BIAS)
        nn.init.constant_(self.threshold.bias, _THRESHOLD_BIAS)

    def scores(self, patches: torch.Tensor) -> torch.Tensor:
        """(batch, patch, width) -> (batch, patch)."""
        scored: torch.Tensor = self.score(self.norm(patches)).squeeze(-1)
        return scored

    def thresholds(self, budget: torch.Tensor) -> torch.Tensor:
        """The budget token as it stands before the gate, (batch, width) -> (batch, 1)."""
        read: torch.Tensor = self.threshold(self.norm(budget))
        return read
