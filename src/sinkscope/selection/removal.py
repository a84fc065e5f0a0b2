"""Rows of unequal length: patches that a gate dropped are gone, and pictures of similar length run together.

After a gate the patches that stay are moved to the front in their order and the rest is cut off. Rows are sorted by
length into groups in which at most a quarter of the tokens is padding, which no query sees. So a batch costs
what its kept tokens cost, and each picture comes out as it would alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

LEAST_FILLED = 0.75
"""Of the tokens of the longest row of a group, the share that its shortest row has at least."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Group:
    """Rows of a batch that run together."""

    rows: torch.Tensor
    """(row,) which pictures of the batch they are"""
    tokens: torch.Tensor
    """(row, head + patch, width)"""
    head: int
    """Tokens before the patches, which are always there"""
    positions: torch.Tensor
    """(row, patch): where in the picture"""
    there: torch.Tensor
    """(row, patch) boolean: False for padding, which stands on the right"""
    sizes: torch.Tensor | None = None
    """(row, patch): how many patches each has taken in, where patches were merged"""

    @property
    def patches(self) -> torch.Tensor:
        """(row, patch, width)"""
        return self.tokens[:, self.head :]

    @property
    def all_there(self) -> torch.Tensor:
        """(row, head + patch) boolean"""
        return torch.nn.functional.pad(self.there, (self.head, 0), value=True)

    def in_picture(self, patches: int) -> torch.Tensor:
        """(row, patch) boolean: which of all patches of a picture are there, row by row."""
        there = torch.zeros(len(self.rows), patches, dtype=torch.bool, device=self.there.device)
        return there.scatter_(1, self.positions, self.there)

    def bias(self) -> torch.Tensor | None:
        """(row, 1, token, token) to add to the scores, or None for nothing: minus infinity at padding, and at a key
        that stands for several patches the logarithm of their number (ToMe's proportional attention)."""
        if self.sizes is None:
            return None if bool(self.there.all()) else hide(self.all_there, self.tokens.dtype)
        sizes = torch.nn.functional.pad(self.sizes, (self.head, 0), value=1.0).log().to(self.tokens)
        return hide(self.all_there, self.tokens.dtype) + sizes[:, None, None, :]

    def keep(self, keep: torch.Tensor, weight: torch.Tensor | None) -> list[Group]:
        """The patches that stay, (row, patch) boolean, multiplied by a weight if any; rows sorted into groups."""
        whole = self
        if weight is not None:
            weighed = self.patches * weight.unsqueeze(-1)
            whole = replace(self, tokens=torch.cat([self.tokens[:, : self.head], weighed], dim=1))
        keep = keep & self.there
        if len(keep) == 1:
            return [whole._alone(keep[0])]
        counts = keep.sum(-1)
        order = (~keep).long().argsort(dim=-1, stable=True)
        return [whole._part(rows, order, counts) for rows in _alike(counts, self.head)]

    def _alone(self, keep: torch.Tensor) -> Group:
        """The only row, cut to the patches that stay, (patch,) boolean: as `_part`, in a few operations."""
        at = keep.nonzero()[:, 0]
        return replace(
            self,
            tokens=torch.cat([self.tokens[:, : self.head], self.patches.index_select(1, at)], dim=1),
            positions=self.positions.index_select(1, at),
            there=self.there[:, : len(at)],
            sizes=None if self.sizes is None else self.sizes.index_select(1, at),
        )

    def _part(self, rows: torch.Tensor, order: torch.Tensor, counts: torch.Tensor) -> Group:
        """These rows, cut to the longest of them."""
        most = int(counts[rows].max())
        first = order[rows, :most]
        patches = self.patches[rows].gather(1, first.unsqueeze(-1).expand(-1, -1, self.tokens.shape[-1]))
        return replace(
            self,
            rows=self.rows[rows],
            tokens=torch.cat([self.tokens[rows, : self.head], patches], dim=1),
            positions=self.positions[rows].gather(1, first),
            there=torch.arange(most, device=counts.device) < counts[rows].unsqueeze(-1),
            sizes=None if self.sizes is None else self.sizes[rows].gather(1, first),
        )


def hide(there: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Minus infinity at keys that are not there: (row, token) boolean -> (row, 1, token, token)."""
    bias = torch.zeros(there.shape, dtype=dtype, device=there.device).masked_fill(~there, -torch.inf)
    return bias[:, None, None, :].expand(-1, 1, there.shape[1], -1)


def scatter_rows(groups: Sequence[Group], parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """What was worked out group by group, in the order of the batch."""
    batch = sum(len(part) for part in parts)
    found = parts[0].new_empty((batch, *parts[0].shape[1:]))
    for group, part in zip(groups, parts, strict=True):
        found.index_copy_(0, group.rows, part)
    return found


def _alike(counts: torch.Tensor, head: int) -> list[torch.Tensor]:
    """Indices of rows, in groups of similar length, longest first."""
    order = counts.argsort(descending=True, stable=True)
    groups: list[list[int]] = []
    longest = 0
    for row, count in zip(order.tolist(), counts[order].tolist(), strict=True):
        if not groups or head + count < LEAST_FILLED * longest:
            groups.append([])
            longest = head + count
        groups[-1].append(row)
    return [torch.tensor(group, device=counts.device) for group in groups]
