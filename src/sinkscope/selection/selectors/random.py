"""Patches at random: what any other selector must beat.

Every picture has one order of its patches, drawn from the seed and the picture's number, at all gates: the same alone
and in any batch.
"""

from dataclasses import dataclass

import torch

from sinkscope.seeds import seed_from
from sinkscope.selection.selectors.base import AtGate, Selector
from sinkscope.selection.selectors.registry import selector


@selector("random")
@dataclass(frozen=True)
class Random(Selector):
    """Another seed is another draw."""

    seed: int = 0

    def scores(self, at: AtGate) -> torch.Tensor:
        most = int(at.positions.max()) + 1 if at.positions.numel() else 0
        drawn = torch.stack([self._drawn(image, most) for image in at.images])
        return drawn.to(at.patches.device).gather(1, at.positions)

    def _drawn(self, image: int, most: int) -> torch.Tensor:
        seed = seed_from(f"random patches/{self.seed}/{image}")
        return torch.rand(most, generator=torch.Generator().manual_seed(seed))
