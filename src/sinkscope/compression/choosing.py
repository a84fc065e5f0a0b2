"""From importance to the keys that stay: one pure function, shared by all caches.

    choose_kept(importance, real, counts)          # (batch, kv_head, slot): which keys stay, in their order

Of equally important keys the one that stands further left stays. NaN counts as the least important.
"""

from collections.abc import Sequence

import torch

EMPTY = -1
"""A slot without a key: rows that keep fewer keys than others have empty slots on the left."""


def choose_kept(importance: torch.Tensor, real: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
    """The keys that stay: indices (batch, kv_head, slot) into the keys, ascending, `EMPTY` on the left of shorter rows.

    importance (batch, kv_head, key). real (batch, kv_head, key) boolean: the keys that there are. counts: how many stay
    in each row; all of them where there are fewer.
    """
    keys = importance.shape[-1]
    order = importance.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf).argsort(
        dim=-1, descending=True, stable=True
    )
    there = real.gather(-1, order)
    order = order.gather(-1, (~there).long().argsort(dim=-1, stable=True))  # what is not real goes last
    device = importance.device
    most = torch.minimum(torch.tensor(counts, device=device).view(-1, 1, 1), real.sum(-1, keepdim=True))
    places = torch.arange(keys, device=device)
    chosen = torch.where(places < most, order, EMPTY).sort(dim=-1).values
    longest = int(most.max()) if most.numel() else 0
    return chosen[..., keys - longest :]
