"""Caches that drop keys: which columns their keys stand for, and how the attention function learns of it.

    register_layer(keys, layer)      # in the cache's `update`, just before the keys go to attention

The attention function finds the layer by the very tensor, lets it take the mask that the network made for the whole
sequence at the keys that are there, and tells it afterwards the queries and what the keys received. So every layer has
the mask of its own keys, whatever the lengths of the others, and nothing has to travel through the network's own
arguments. It works inside transformers' `generate` and in any loop.

Where it misleads: a network whose attention changes the keys after its cache, or that runs another attention function,
never comes for the layer. A cache notices that nobody asked it for a mask, and must refuse to go on: what it hands over
would be masked wrongly in silence.
"""

from dataclasses import dataclass
from typing import Protocol
from weakref import ref

import torch


@dataclass(frozen=True, eq=False)
class KeyIndex:
    """The column of the sequence of each key. Statistics and interventions speak of columns, a kernel sees keys.

    columns (batch, 1 or kv_head, key): ascending, -1 where a slot is empty. width: columns of the sequence.
    """

    columns: torch.Tensor
    width: int

    def of_heads(self, heads: int) -> torch.Tensor:
        """(batch, 1 or head, key): the same for query heads or key heads."""
        if self.columns.shape[1] in (1, heads):
            return self.columns
        return self.columns.repeat_interleave(heads // self.columns.shape[1], dim=1)

    def scatter(self, values: torch.Tensor, empty: float = 0.0) -> torch.Tensor:
        """Values of keys, (batch, head, ..., key), laid out over all columns; `empty` where no key is."""
        columns = self.of_heads(values.shape[1]).long()
        index = torch.where(columns >= 0, columns, self.width)  # empty slots go to one more column, which is cut off
        index = index.view(*index.shape[:2], *(1 for _ in values.shape[2:-1]), index.shape[-1]).expand(values.shape)
        laid_out = values.new_full((*values.shape[:-1], self.width + 1), empty)
        return laid_out.scatter(-1, index, values)[..., : self.width]

    def gather(self, values: torch.Tensor, empty: float = 0) -> torch.Tensor:
        """Values of columns, (batch, 1 or head, ..., column), at the keys; `empty` in empty slots."""
        heads = values.shape[1]
        columns = (self.columns if heads == 1 else self.of_heads(heads)).long()
        between = values.shape[2:-1]
        columns = columns.view(*columns.shape[:2], *(1 for _ in between), columns.shape[-1])
        columns = columns.expand(-1, max(heads, columns.shape[1]), *between, -1)
        at_keys = values.expand(*columns.shape[:2], *values.shape[2:]).gather(-1, columns.clamp(min=0))
        return at_keys.masked_fill(columns < 0, empty)

    def gather_mask(self, mask: torch.Tensor, heads: int) -> torch.Tensor:
        """A mask (batch, 1 or head, query, column) at the keys: (batch, 1 or head, query, key).

        A boolean mask stays boolean; a mask to be added stays one, with the lowest number in empty slots.
        """
        mask = mask[..., : self.width]
        if self.columns.shape[1] > 1:
            mask = mask.expand(-1, heads, -1, -1)
        return self.gather(mask, empty=False if mask.dtype == torch.bool else torch.finfo(mask.dtype).min)

    def present(self, heads: int) -> torch.Tensor:
        """(batch, head, column) boolean: columns whose key is there."""
        columns = self.of_heads(heads).expand(-1, heads, -1)
        return self.scatter(torch.ones_like(columns, dtype=torch.bool), empty=False)


class EvictingLayer(Protocol):
    """One layer of a cache that may have dropped keys."""

    @property
    def index(self) -> KeyIndex | None:
        """The columns of its keys; None while every column of the sequence has its key, in order."""

    @property
    def needs_received(self) -> bool:
        """Whether it must be told what the keys received, for which the network must be watched."""

    def gather_mask(self, mask: torch.Tensor | None, queries: int) -> torch.Tensor | None:
        """The mask at the keys that are there, from that of all columns, (batch, 1 or head, query, column) boolean or
        added to the scores. None: SDPA without a mask is right. Called once a pass, before `index` is read."""

    def on_attention(self, query: torch.Tensor, scale: float, received: torch.Tensor | None) -> None:
        """The layer's attention is done. query (batch, head, query, dim). received (batch, head, key): sums over the
        queries that count; None where nobody watches."""


_waiting: dict[int, tuple[ref[torch.Tensor], ref[EvictingLayer]]] = {}
"""Layers on their way to the attention function, by the identity of their keys. Keeps nothing alive."""


def register_layer(keys: torch.Tensor, layer: EvictingLayer) -> None:
    """Let the attention function know whose keys these are; the call with this very tensor takes the layer."""
    identity = id(keys)
    _waiting[identity] = ref(keys, lambda _: _waiting.pop(identity, None)), ref(layer)


def take_layer(keys: torch.Tensor) -> EvictingLayer | None:
    """The layer that registered these keys; None for keys of any other cache, or of none."""
    found = _waiting.pop(id(keys), None) if _waiting else None
    return None if found is None else found[1]()


def visible_rows(mask: torch.Tensor) -> torch.Tensor:
    """Which queries may see any key at all.

    Mask (..., query, key) boolean or added to the scores, result (..., query).
    """
    if mask.dtype == torch.bool:
        return mask.any(-1)
    return mask.amax(-1) > torch.finfo(mask.dtype).min


def newest_real(mask: torch.Tensor, first: int, queries: int) -> torch.Tensor:
    """Which of the newest columns hold a token, (batch, query): padding is hidden even from its own query.

    mask (batch, 1 or head, query, column). first: the column of the first query.
    """
    own = mask[..., first : first + queries].diagonal(dim1=-2, dim2=-1)  # (batch, 1 or head, query)
    return visible_rows(own.unsqueeze(-1)).any(1)
