"""The budget: the share of patches that may be sent, how many patches that is at every gate, the token that tells the
network of it, and the gates.

    count_kept(0.5, 49)               # 25: never fewer than asked, and at most one more than the exact share
    gate_shares(0.25, 2)              # [0.5, 0.25]: what stays after each gate, the last one as asked

The share counts patches alone. The class token always travels, so a transmission is one token longer than the share
says. Where the published method gates every block down to the same share, here the earlier gates keep more:
alpha^(g / G) after gate g of G, the geometric schedule of DynamicViT (arXiv 2106.02034).

A gate has two neurons. One scores each patch, a_i = w x_i + c; the other reads the threshold from the budget token,
t = u b + e. The published gate compares sigmoid(a_i) with sigmoid(t) (arXiv 2405.02330; METHODS section 4); what is
made of the two numbers is the mode's business (`modes`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn

from sinkscope.errors import UserError

_ROUNDING = 1e-7
"""0.07 x 100 is a little more than 7 in binary, 0.6 x 225 in single precision visibly more than 135; it is 7 and 135
that were meant. Relative, and more than half of single precision's step."""
_SCORE_BIAS, _THRESHOLD_BIAS = 5.0, -5.0
"""At first everything is kept: sigmoid(5) lies far above sigmoid(-5)."""
_SPREAD = 0.02


def check_alpha(alpha: float | Sequence[float] | torch.Tensor) -> None:
    """Raise `UserError` unless every share lies in (0, 1]."""
    for one in torch.as_tensor(alpha, dtype=torch.float64).reshape(-1).tolist():
        if not 0 < one <= 1:
            raise UserError(f"alpha must lie in (0, 1], the share of patches to keep; got {one:g}")


def alphas(alpha: float | Sequence[float] | torch.Tensor, batch: int) -> torch.Tensor:
    """One share an image, (batch,) float64. Raises `UserError` for shares outside (0, 1] or too few of them."""
    given = torch.as_tensor(alpha, dtype=torch.float64)
    check_alpha(given)
    if given.ndim > 1 or (given.ndim == 1 and len(given) not in (1, batch)):
        raise UserError(f"alpha must be one number or one for each of the {batch} images, got {tuple(given.shape)}")
    return given.reshape(-1).expand(batch)


def count_kept(alpha: float, patches: int) -> int:
    """ceil(alpha x patches), at least 1."""
    return max(1, math.ceil(alpha * patches * (1 - _ROUNDING)))


def gate_shares(alpha: float, gates: int) -> list[float]:
    """The share of patches that stays after each gate: alpha^(1/G) ... alpha."""
    return [alpha ** ((gate + 1) / gates) for gate in range(gates)]


def gate_counts(alpha: torch.Tensor, gates: int, patches: int) -> list[torch.Tensor]:
    """How many patches of each image stay after each gate: a (batch,) integer tensor a gate."""
    rows = [[count_kept(share, patches) for share in gate_shares(one, gates)] for one in alpha.tolist()]
    return [torch.tensor([row[gate] for row in rows], dtype=torch.long) for gate in range(gates)]


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
