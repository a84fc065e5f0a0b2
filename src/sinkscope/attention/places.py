"""Which column of the sequence each key stands for, where a cache has dropped keys, head by head.

Statistics and interventions speak of columns of the sequence; a kernel sees keys. `Places` translates: what keys
received is spread over the columns, and what is said of columns is taken at the keys.
"""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, eq=False)
class Places:
    """columns (batch, 1 or kv_head, key): ascending, -1 where a slot is empty. width: columns of the sequence."""

    columns: torch.Tensor
    width: int

    def of_heads(self, heads: int) -> torch.Tensor:
        """(batch, 1 or head, key): the same for query heads or key heads."""
        if self.columns.shape[1] in (1, heads):
            return self.columns
        return self.columns.repeat_interleave(heads // self.columns.shape[1], dim=1)

    def spread(self, values: torch.Tensor, empty: float = 0.0) -> torch.Tensor:
        """What belongs to keys, (batch, head, ..., key), laid out over all columns; `empty` where no key is."""
        columns = self.of_heads(values.shape[1]).long()
        index = torch.where(columns >= 0, columns, self.width)  # empty slots go to one more column, which is cut off
        index = index.view(*index.shape[:2], *(1 for _ in values.shape[2:-1]), index.shape[-1]).expand(values.shape)
        laid_out = values.new_full((*values.shape[:-1], self.width + 1), empty)
        return laid_out.scatter(-1, index, values)[..., : self.width]

    def taken(self, values: torch.Tensor) -> torch.Tensor:
        """What is said of columns, (batch, 1 or head, ..., column), at the keys; zero or False in empty slots."""
        heads = values.shape[1]
        columns = (self.columns if heads == 1 else self.of_heads(heads)).long()
        between = values.shape[2:-1]
        columns = columns.view(*columns.shape[:2], *(1 for _ in between), columns.shape[-1])
        columns = columns.expand(-1, max(heads, columns.shape[1]), *between, -1)
        at_keys = values.expand(*columns.shape[:2], *values.shape[2:]).gather(-1, columns.clamp(min=0))
        return torch.where(columns >= 0, at_keys, torch.zeros_like(at_keys))

    def present(self, heads: int) -> torch.Tensor:
        """(batch, head, column) boolean: columns whose key is there."""
        columns = self.of_heads(heads).expand(-1, heads, -1)
        return self.spread(torch.ones_like(columns, dtype=torch.bool), empty=False)
