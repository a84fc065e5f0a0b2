"""What the layers of the pass before showed, laid out over the keys of the pass that is under way.

A diffusion model sees the same columns in every step. The keys of an autoregressive one grow by one, and a sliding
cache forgets the first ones; columns that the earlier map lacks are unknown.
"""

from dataclasses import dataclass, field

import torch


@dataclass
class Memory:
    """One tensor (batch, head, key) a layer, with the column after its last key."""

    _kept: dict[int, tuple[int, torch.Tensor]] = field(default_factory=dict)

    def keep(self, layer: int, end: int, values: torch.Tensor) -> None:
        """Remember what a layer showed; `end`: the column after its last key."""
        self._kept[layer] = (end, values)

    def recall(self, layer: int, end: int, keys: int) -> tuple[torch.Tensor, torch.Tensor] | None:
        """What is remembered of the columns from end - keys to end, (batch, head, key), and which of them are known,
        (key,). None where the layer was never kept."""
        if layer not in self._kept:
            return None
        until, values = self._kept[layer]
        first, known_first = end - keys, until - values.shape[-1]
        left, right = max(0, known_first - first), max(0, end - until)
        inside = values[..., max(0, first - known_first) :]
        known = torch.ones(inside.shape[-1], dtype=torch.bool, device=values.device)
        laid_out: torch.Tensor = torch.nn.functional.pad(inside, (left, right))
        return laid_out, torch.nn.functional.pad(known, (left, right))
