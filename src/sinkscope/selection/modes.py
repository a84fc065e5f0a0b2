"""How a budget is honoured: scores, a threshold and a count in; which patches stay, and how gradients reach the scores,
out.

`exact` keeps as many patches as the budget says, those of the highest scores. `up-to` keeps those above the threshold,
never more than the budget; a selector without a threshold sends the whole budget. The gradient of both is that of a
sigmoid around the threshold, which the loss keeps where the budget is.

`soft` is the published gate: m = ReLU(sigmoid(score) - sigmoid(threshold)) multiplies the patch (arXiv 2405.02330). How
many patches stay depends on the training: the loss asks for a mean of m, the wire counts what is not zero.
Trained to a half, the authors' model sent .626 (PEERS). Two things differ from their code: the threshold is read from
the budget token, and no query sees a dropped patch, in batches as alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch

from sinkscope.discovery import Register
from sinkscope.errors import UserError
from sinkscope.ordering import best

TEMPERATURE = 1.0
"""Of the relaxation: how far from the threshold, in units of the score, a patch still feels the gradient."""
LEAST = 1e-3
"""In the mode `soft`, smaller weights count as dropped, as in the authors' evaluation."""

_REGISTER: Register[Mode] = Register("mode")
MODES, mode = _REGISTER.kinds, _REGISTER.file


def find_mode(name: str) -> Mode:
    """The mode called `name`. Raises `UserError` for an unknown name."""
    return _REGISTER.find(name)()


@dataclass(frozen=True, eq=False, kw_only=True)
class ScoredPatches:
    """What a gate sees of a batch. Patches that are not `there` have been dropped before, or are padding."""

    scores: torch.Tensor
    """(batch, patch), higher is kept longer"""
    threshold: torch.Tensor | None
    """(batch, 1) on the scale of the scores; None where there is none"""
    counts: torch.Tensor
    """(batch,) patches that the budget allows"""
    there: torch.Tensor
    """(batch, patch) boolean"""


@dataclass(frozen=True, eq=False, kw_only=True)
class GateDecision:
    """What a gate lets pass."""

    keep: torch.Tensor
    """(batch, patch) boolean"""
    weight: torch.Tensor | None = None
    """(batch, patch): what kept patches are multiplied by; None for nothing"""


@dataclass(frozen=True, eq=False, kw_only=True)
class Relaxation:
    """What training sees of a decision."""

    relaxed: torch.Tensor
    """(batch, patch) between 0 and 1, differentiable: how surely each patch is kept. Training holds its mean against
    the budget."""
    policy: torch.Tensor
    """(batch, patch): `keep` in value; in gradient, what attention would be with a little more or less of a patch"""


class Mode(ABC):
    name: ClassVar[str]
    needs_threshold: ClassVar[bool] = True
    """Whether `choose` looks at the threshold."""

    @abstractmethod
    def choose(self, patches: ScoredPatches) -> GateDecision:
        """Which of the patches that are there stay."""

    def relax(self, patches: ScoredPatches, chosen: GateDecision) -> Relaxation:
        """The decision that `choose` made of these patches, for training."""
        relaxed = above(patches)
        return Relaxation(relaxed=relaxed, policy=straight_through(chosen.keep, relaxed))


@mode("exact")
class Exact(Mode):
    needs_threshold = False

    def choose(self, patches: ScoredPatches) -> GateDecision:
        return GateDecision(keep=top(patches))


@mode("up-to")
class UpTo(Mode):
    def choose(self, patches: ScoredPatches) -> GateDecision:
        keep = top(patches)
        if patches.threshold is not None:
            keep = keep & (patches.scores > patches.threshold)
        return GateDecision(keep=keep)


@mode("soft")
class Soft(Mode):
    def choose(self, patches: ScoredPatches) -> GateDecision:
        if patches.threshold is None:
            raise UserError("the soft mode needs the gates' threshold: use it with the selector 'gates'")
        passed = torch.relu(torch.sigmoid(patches.scores) - torch.sigmoid(patches.threshold)) * patches.there
        keep = passed > LEAST
        return GateDecision(keep=keep, weight=passed * keep)

    def relax(self, patches: ScoredPatches, chosen: GateDecision) -> Relaxation:
        del patches
        assert chosen.weight is not None
        return Relaxation(relaxed=chosen.weight, policy=chosen.keep.to(chosen.weight))


def top(patches: ScoredPatches) -> torch.Tensor:
    """(batch, patch) boolean: the `counts` patches of the highest score, of equal ones the one further left."""
    return best(patches.scores.where(patches.there, torch.nan), patches.counts) & patches.there


def above(patches: ScoredPatches) -> torch.Tensor:
    """(batch, patch): sigmoid of the distance to the threshold, 0 for patches that are not there.

    Without a threshold the middle between the last score kept and the first dropped stands for it.
    """
    threshold = _between(patches) if patches.threshold is None else patches.threshold
    return torch.sigmoid((patches.scores - threshold) / TEMPERATURE) * patches.there


def straight_through(keep: torch.Tensor, relaxed: torch.Tensor) -> torch.Tensor:
    """`keep` in value, to the bit, `relaxed` in gradient (Bengio et al. 2013, arXiv 1308.3432)."""
    return keep.to(relaxed) + (relaxed - relaxed.detach())


def _between(patches: ScoredPatches) -> torch.Tensor:
    kept, scores = top(patches), patches.scores.detach()
    lowest = scores.masked_fill(~kept, torch.inf).amin(-1, keepdim=True)
    highest = scores.masked_fill(kept | ~patches.there, -torch.inf).amax(-1, keepdim=True)
    return torch.where(highest.isfinite(), (lowest + highest) / 2, lowest - 1)
