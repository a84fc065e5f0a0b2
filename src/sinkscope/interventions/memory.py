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

    def keep(self, layer: int, end: int, values: torch.Tensor, rows: torch.Tensor | None = None) -> None:
        """Remember what a layer showed; `end`: the column after its last key, never before that of an earlier pass.

        rows (batch,) boolean: the others keep what they had, with nothing in columns that are new; None means all.
        """
        before = None if rows is None else self.recall(layer, end, values.shape[-1])
        if rows is not None and before is not None:
            values = torch.where(rows.view(-1, 1, 1), values, before[0])
        self._kept[layer] = (end, values)

    def recall(self, layer: int, end: int, keys: int) -> tuple[torch.Tensor, torch.Tensor] | None:
        """What is remembered of the columns from end - keys to end, (batch, head, key), and which of them are known,
        (key,). None where the layer was never kept."""
        if layer not in self._kept:
            return None
        until, values = self._kept[layer]
        first, known_first = end - keys, until - values.shape[-1]
        left, right = max(0, known_first - first), max(0, end - max(until, first))
        inside = values[..., max(0, first - known_first) :]
        known = torch.ones(inside.shape[-1], dtype=torch.bool, device=values.device)
        laid_out: torch.Tensor = torch.nn.functional.pad(inside, (left, right))
        return laid_out, torch.nn.functional.pad(known, (left, right))
