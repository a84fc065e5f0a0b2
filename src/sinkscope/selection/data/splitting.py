"""Draw pictures by seed so that every class keeps its share.

    stratified(labels, 60, seed=0)             # 60 of the indices, in ascending order

The same seed draws the same pictures. Shares are kept as far as whole pictures allow: a class of three gives none to a
tenth.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


def stratified(labels: torch.Tensor, count: int, seed: int, *, leave: int = 0) -> torch.Tensor:
    """Indices of `count` of the labels (n,), ascending; fewer where each class must leave so many behind."""
    generator = torch.Generator().manual_seed(seed)
    drawn = []
    for label, quota in enumerate(_quotas(torch.bincount(labels).tolist(), count, leave)):
        rows = (labels == label).nonzero().flatten()
        drawn.append(rows[torch.randperm(len(rows), generator=generator)[:quota]])
    return torch.cat(drawn).sort().values


def _quotas(sizes: Sequence[int], count: int, leave: int) -> list[int]:
    """How many of each class: its share rounded down, and the rest to the largest remainders."""
    room = [max(0, size - leave) for size in sizes]
    count = min(count, sum(room))
    shares = [count * size / max(1, sum(sizes)) for size in sizes]
    quotas = [min(int(share), most) for share, most in zip(shares, room, strict=True)]
    by_remainder = sorted(range(len(sizes)), key=lambda one: (int(shares[one]) - shares[one], one))
    while sum(quotas) < count:
        for one in by_remainder:
            if quotas[one] < room[one] and sum(quotas) < count:
                quotas[one] += 1
    return quotas
