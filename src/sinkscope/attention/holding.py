"""How a cache that drops keys tells the attention function which ones it still has.

    hand_over(keys, holder)          # in the cache's `update`, just before the keys go to attention

The attention function finds the holder by the very tensor, lets it narrow the mask that the network made for the whole
sequence down to the keys that are there, and tells it afterwards what was asked and what the keys received. So every
layer has the mask of its own keys, whatever the lengths of the others, and nothing has to travel through the network's
own arguments. It works inside transformers' `generate` and in any loop.

Where it misleads: a network whose attention changes the keys after its cache, or that runs another attention function,
never comes for the holder. A cache notices that nobody asked it for a mask, and must refuse to go on: what it hands
over would be masked wrongly in silence.
"""

from typing import Protocol
from weakref import ref

import torch

from sinkscope.attention.kernels import visible_rows
from sinkscope.attention.places import Places


class Holder(Protocol):
    """One layer of a cache that may have dropped keys."""

    @property
    def places(self) -> Places | None:
        """Where its keys stand; None while every column of the sequence has its key, in order."""

    @property
    def wants_received(self) -> bool:
        """Whether it must be told what the keys received, for which the network must be watched."""

    def narrow(self, mask: torch.Tensor | None, queries: int) -> torch.Tensor | None:
        """The mask of the keys that are there, from that of all columns, (batch, 1 or head, query, column) boolean or
        added to the scores. None: SDPA without a mask is right. Called once a pass, before `places` is asked for."""

    def attended(self, query: torch.Tensor, scale: float, received: torch.Tensor | None) -> None:
        """The layer's attention is done. query (batch, head, query, dim). received (batch, head, key): sums over the
        queries that count; None where nobody watches."""


_waiting: dict[int, tuple[ref[torch.Tensor], ref[Holder]]] = {}
"""Holders on their way to the attention function, by the identity of their keys. Keeps nothing alive."""


def hand_over(keys: torch.Tensor, holder: Holder) -> None:
    """Let the attention function know who holds these keys; the call with this very tensor takes it."""
    place = id(keys)
    _waiting[place] = ref(keys, lambda _: _waiting.pop(place, None)), ref(holder)


def take_holder(keys: torch.Tensor) -> Holder | None:
    """Who holds these keys; None for keys of any other cache, or of none."""
    found = _waiting.pop(id(keys), None) if _waiting else None
    return None if found is None else found[1]()


def narrowed(mask: torch.Tensor, places: Places, heads: int) -> torch.Tensor:
    """A mask (batch, 1 or head, query, column) at the keys that are there: (batch, 1 or head, query, key).

    Comes back boolean if it was; numbers to be added stay numbers, the lowest in empty slots.
    """
    mask = mask[..., : places.width]
    if places.columns.shape[1] > 1:
        mask = mask.expand(-1, heads, -1, -1)
    if mask.dtype == torch.bool:
        return places.taken(mask)
    columns = places.of_heads(mask.shape[1]).long().unsqueeze(2)
    index = columns.clamp(min=0).expand(-1, mask.shape[1], mask.shape[2], -1)
    added = mask.expand(index.shape[0], -1, -1, -1).gather(-1, index)
    return added.masked_fill(columns < 0, torch.finfo(mask.dtype).min)


def newest_real(mask: torch.Tensor, first: int, queries: int) -> torch.Tensor:
    """Which of the newest columns hold a token, (batch, query): padding is hidden even from its own query.

    mask (batch, 1 or head, query, column). first: the column of the first query.
    """
    own = mask[..., first : first + queries].diagonal(dim1=-2, dim2=-1)  # (batch, 1 or head, query)
    return visible_rows(own.unsqueeze(-1)).any(1)
