"""The trained gates."""

import torch

from sinkscope.selection.selectors.base import AtGate, Selector
from sinkscope.selection.selectors.registry import selector


@selector("gates")
class Gates(Selector):
    """Scores and threshold of the gate itself."""

    def scores(self, at: AtGate) -> torch.Tensor:
        return at.gate.scores(at.patches)

    def thresholds(self, at: AtGate) -> torch.Tensor:
        return at.gate.thresholds(at.budget)
