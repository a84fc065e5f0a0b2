"""The losses: cross-entropy, and the budget.

The published loss is cross-entropy + lambda (share kept - alpha)^2, with the mean of the soft gate as the share (arXiv
2405.02330). In the modes that keep a count the same term holds each gate's threshold where the count cuts, so that
"up-to" has something to go by and the straight-through gradient sits where the decision is made.
"""

from __future__ import annotations

import torch
from torch.nn.functional import cross_entropy

from sinkscope.selection.learning.drawing import Drawn
from sinkscope.selection.model import SelectiveViT
from sinkscope.selection.relaxing import relaxed_pass


def whole_loss(model: SelectiveViT, drawn: Drawn) -> torch.Tensor:
    """Cross-entropy of the backbone with all its patches."""
    backbone = model.backbone
    backbone.check_images(drawn.images)
    tokens = backbone.embed(drawn.images)
    for index in range(len(backbone.blocks)):
        tokens = backbone.block(index, tokens, None)
    there = torch.ones(len(tokens), backbone.patches, dtype=torch.bool, device=tokens.device)
    return cross_entropy(backbone.classify(tokens, there), drawn.labels)


def selecting_loss(model: SelectiveViT, drawn: Drawn, budget_weight: float) -> torch.Tensor:
    """Cross-entropy with what gates and channel leave, and the budget."""
    relaxed = relaxed_pass(model, drawn.images, drawn.alpha, link=drawn.link)
    budget = (relaxed.shares - relaxed.targets.to(relaxed.shares)).square().mean()
    return cross_entropy(relaxed.logits, drawn.labels) + budget_weight * budget
