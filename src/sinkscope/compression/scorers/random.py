"""Keep keys at random: what any other scorer must beat.

Each layer, key head and position has one random number, drawn on the CPU from the row's seed: the same alone and in any
batch, on any device, and at every later pruning, so that a token which stays has the same chance as one that comes.

Where it misleads: what random dropping costs depends on whether the first tokens survive. Give several seeds, and look
at `Protect(Random(), first=4)` too.
"""

from dataclasses import dataclass

import torch

from sinkscope.compression.scorers.base import CachedLayer, Scorer
from sinkscope.compression.scorers.registry import scorer
from sinkscope.seeds import seed_from


@scorer("random")
@dataclass(frozen=True)
class Random(Scorer):
    """Random keys stay."""

    def importance(self, cached: CachedLayer) -> torch.Tensor:
        rows = [
            self._drawn(seed, cached.layer, positions)
            for seed, positions in zip(cached.seeds, cached.positions.cpu(), strict=True)
        ]
        return torch.stack(rows).to(cached.keys.device)

    def _drawn(self, seed: int, layer: int, positions: torch.Tensor) -> torch.Tensor:
        """Uniform numbers of one row at positions (kv_head, key)."""
        generator = torch.Generator().manual_seed(seed_from(f"random keys/{seed}/{layer}"))
        # One draw after the other, so that a position has the same number in a longer text.
        most = int(positions.max()) + 1 if positions.numel() else 0
        drawn = torch.rand(most, positions.shape[0], generator=generator)  # (position, kv_head)
        return drawn.T.gather(-1, positions.long())
