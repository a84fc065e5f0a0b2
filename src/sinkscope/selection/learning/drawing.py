"""What a step draws: pictures, their shift, shares, rate, SNRs. All of it follows from the seed and the step.

So a training that was killed goes on as an unbroken one, and two trainings that differ in one setting see the same
pictures in the same order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from sinkscope.seeds import seed_from
from sinkscope.selection.channels import find_channel, seed_channels
from sinkscope.selection.data import ImageSet
from sinkscope.selection.learning.recipe import Recipe
from sinkscope.selection.link import Link


@dataclass(frozen=True, eq=False, kw_only=True)
class Drawn:
    """One batch."""

    images: torch.Tensor
    """(batch, channel, row, column)"""
    labels: torch.Tensor
    """(batch,)"""
    alpha: torch.Tensor
    """(batch,) float64"""
    link: Link | None


def steps_in_pass(pictures: int, batch: int) -> int:
    """Steps in one pass over the pictures; a last batch that is short is left out unless it is the only one."""
    return max(1, pictures // batch)


def draw(data: ImageSet, recipe: Recipe, part: str, step: int) -> Drawn:
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
