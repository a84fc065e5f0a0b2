"""The published gate: m = ReLU(sigmoid(score) - sigmoid(threshold)) multiplies the patch (arXiv 2405.02330).

How many patches stay is whatever training made of it: the loss asks for a mean of m, the wire counts what is not zero.
Trained to a half, the authors' model sent .626 (PEERS). Two things differ from their code: the threshold is read from
the budget token, and what is dropped is a key for nobody, in batches as alone.
"""

import torch

from sinkscope.errors import UserError
from sinkscope.selection.modes.base import Asked, Kept, Mode
from sinkscope.selection.modes.registry import mode

LEAST = 1e-3
"""Smaller weights count as dropped, as in the authors' evaluation."""


@mode("soft")
class Soft(Mode):
    """As published: no count is kept."""

    def choose(self, asked: Asked) -> Kept:
        if asked.threshold is None:
            raise UserError("the soft mode needs the gates' threshold: use it with the selector 'gates'")
        passed = torch.relu(torch.sigmoid(asked.scores) - torch.sigmoid(asked.threshold)) * asked.there
        keep = passed > LEAST
        weight = passed * keep
        return Kept(keep=keep, weight=weight, relaxed=weight, policy=keep.to(weight))
