"""What a step draws - pictures, their shift, shares, rate, SNRs - and the losses.

All that is drawn follows from the seed and the step. So a training that was killed resumes as an unbroken one, and two
trainings that differ in one setting see the same pictures in the same order.

The published loss is cross-entropy + lambda (share kept - alpha)^2, with the mean of the soft gate as the share (arXiv
2405.02330). In the modes that keep a count the same term holds each gate's threshold where the count cuts, so that
"up-to" has something to go by and the straight-through gradient sits where the decision is made.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch.nn.functional import cross_entropy

from sinkscope.seeds import seed_from
from sinkscope.selection.channels import find_channel, seed_channels
from sinkscope.selection.data import ImageSet
from sinkscope.selection.learning.recipe import SelectionRecipe
from sinkscope.selection.link import Link
from sinkscope.selection.model import SelectiveViT
from sinkscope.selection.relaxing import relaxed_pass


@dataclass(frozen=True, eq=False, kw_only=True)
class Drawn:
    images: torch.Tensor
    """(batch, channel, row, column)"""
    labels: torch.Tensor
    """(batch,)"""
    alpha: torch.Tensor
    """(batch,) float64"""
    link: Link | None

    def to(self, device: torch.device) -> Drawn:
        return replace(self, images=self.images.to(device), labels=self.labels.to(device))


def steps_in_pass(pictures: int, batch: int) -> int:
    """Steps in one pass over the pictures; a last batch that is short is left out unless it is the only one."""
    return max(1, pictures // batch)


def draw(data: ImageSet, recipe: SelectionRecipe, part: str, step: int) -> Drawn:
    """The batch of a step (from 0) of a part of the training."""
    length = steps_in_pass(len(data), recipe.batch)
    order = torch.randperm(len(data), generator=_generator(recipe.seed, part, step // length, "order"))
    chosen = order[(step % length) * recipe.batch :][: recipe.batch]
    generator = _generator(recipe.seed, part, step, "batch")
    size = len(chosen)
    # One share from each of as many even parts of the range, in random order: every step sees them all.
    even = (
        torch.randperm(size, generator=generator) + torch.rand(size, generator=generator, dtype=torch.float64)
    ) / size
    alpha = recipe.least_alpha + (1 - recipe.least_alpha) * even
    clean, way = torch.rand(2, generator=generator).tolist()
    low, high = recipe.snr
    snr = low + (high - low) * torch.rand(size, generator=generator)
    link = None
    if clean >= recipe.clean:
        seed_channels(int(torch.randint(2**31, (1,), generator=generator)))
        link = Link(find_channel(recipe.channel), math.exp(way * math.log(recipe.least_rate)), snr)
    images = shifted(data.pixels(chosen), recipe.shift, generator)
    return Drawn(images=images, labels=data.labels[chosen], alpha=alpha, link=link)


def shifted(images: torch.Tensor, most: int, generator: torch.Generator) -> torch.Tensor:
    """Each picture moved by up to `most` pixels each way; its edge is repeated."""
    if most == 0:
        return images
    batch, _, rows, columns = images.shape
    padded = torch.nn.functional.pad(images, (most,) * 4, mode="replicate")
    places = torch.randint(2 * most + 1, (2, batch), generator=generator)
    moved = [
        one[:, row : row + rows, column : column + columns]
        for one, row, column in zip(padded, *places.tolist(), strict=True)
    ]
    return torch.stack(moved)


def _generator(seed: int, part: str, number: int, what: str) -> torch.Generator:
    return torch.Generator().manual_seed(seed_from(f"{seed}/{part}/{number}/{what}"))


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
