"""What a kernel is given, one attention call and the keys cut from it, and whom it tells what it sees."""

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from typing import Protocol, Self

import torch

from sinkscope.attention.evicting import KeyIndex


@dataclass(frozen=True, kw_only=True)
class Attention:
    """The inputs of one attention call.

    query (batch, head, query, dim); key, value (batch, kv_head, key, dim). `mask`: broadcastable to (batch, head,
    query, key), boolean (True: may be seen) or added to the scores. `causal`: lower-triangular from the first key, no
    mask given. `index`: the columns of the keys, if a cache has dropped some; None: each key is its own column.

    What some models change in their scores s, in this order: `softcap` c makes them c tanh(s / c) (Gemma 2, arXiv
    2408.00118, section 2); `bias` (1 or batch, 1 or head, 1 or query, key) is added, as the mask is afterwards (T5);
    `learned_sink` (head,) is the score of one more column that has no key and no value, so that attention may go to
    nothing (gpt-oss, arXiv 2508.10925; `s_aux` in transformers). `changed`: a function of scores (batch, head, row,
    key) and their first row that is applied before the mask (flex attention, arXiv 2412.05496).

    `room`: memory that one block of scores after the other is written to; None: each gets its own.
    """

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    mask: torch.Tensor | None
    causal: bool
    scale: float
    index: KeyIndex | None = None
    softcap: float | None = None
    bias: torch.Tensor | None = None
    learned_sink: torch.Tensor | None = None
    changed: Callable[[torch.Tensor, int], torch.Tensor] | None = None
    room: torch.Tensor | None = None

    @property
    def exact(self) -> torch.dtype:
        """The precision of scores and sums: float32, or float64 where the queries are."""
        return torch.promote_types(self.query.dtype, torch.float32)

    @property
    def width(self) -> int:
        """Columns of the sequence that keys stand for, whether they are still there or not."""
        return self.key.shape[2] if self.index is None else self.index.width

    @property
    def present(self) -> torch.Tensor | None:
        """(batch, head, column) boolean: columns whose key is there; None: all."""
        return None if self.index is None else self.index.present(self.query.shape[1])

    def by_column(self, by_key: torch.Tensor) -> torch.Tensor:
        """What belongs to keys, (batch, head, key), for all columns: nothing where a key was dropped."""
        return by_key if self.index is None else self.index.scatter(by_key)


@dataclass(frozen=True, kw_only=True, eq=False)
class Cut:
    """Keys that one attention call may not use.

    keys: (batch, head, key) boolean; of a cache that dropped keys, one for every column of the sequence. queries:
        (batch, query) boolean, whose rows lose them; None means all.
    values_only: scores stay as they are, and the values of the keys count as zero: attention paid to them is lost
        instead of going to other keys.
    instead: with `values_only`, what those values count as in place of zero, (batch or 1, kv_head, key, dim), for every
        column as `keys`; or one for all keys, (batch or 1, kv_head, 1, dim).
    """

    keys: torch.Tensor
    queries: torch.Tensor | None = None
    values_only: bool = False
    instead: torch.Tensor | None = None

    def at_keys(self, index: KeyIndex | None) -> "Cut":
        """The same cut at the keys of a cache that dropped some, from that of all columns."""
        if index is None:
            return self
        instead = self.instead
        if instead is not None and instead.shape[2] > 1:
            instead = index.gather(instead.transpose(-1, -2)).transpose(-1, -2)
        return replace(self, keys=index.gather(self.keys), instead=instead)

    def part(self, batch: slice, heads: slice) -> "Cut":
        """The same for some rows of the batch and some query heads, which have key heads of their own."""
        queries, instead = self.queries, self.instead
        if instead is not None:
            share = self.keys.shape[1] // instead.shape[1]
            own = slice(heads.start // share, heads.stop // share)
            instead = instead[batch if len(instead) > 1 else slice(None), own]
        return replace(
            self,
            keys=self.keys[batch, heads],
            queries=None if queries is None else queries[batch if len(queries) > 1 else slice(None)],
            instead=instead,
        )


class Accumulator(Protocol):
    """Sees the probabilities of a layer as a kernel computes them."""

    def add(self, start: int, stop: int, probabilities: torch.Tensor, no_key: torch.Tensor | None = None) -> None:
        """Take the rows start:stop, (batch, head, rows, key) float32, and what of them goes to no key, (batch, head,
        rows), of attention with a learned sink. Must not keep the tensors: they are reused."""

    def part(self, batch: slice, heads: slice) -> Self:
        """The same for some rows of the batch and some heads: what it is told belongs to these."""

    def wanted(self) -> "list[Wanted] | None":
        """The sums that would do in place of the rows; None where the probabilities themselves are needed."""


@dataclass(frozen=True, kw_only=True)
class Sums:
    """Sums over the queries of a layer, in place of its probabilities: by_weight (batch, head, group, key), no_key
    (batch, head, group) to a learned sink, and the entropy of each row, (batch, head, query), in nats."""

    by_weight: torch.Tensor
    no_key: torch.Tensor | None
    entropy: torch.Tensor | None


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Sums that somebody waits for. weights (batch, group, query): of each query. take: is given them."""

    weights: torch.Tensor
    entropy: bool
    take: Callable[[Sums], None]


class FullMap:
    """Keeps the whole map, (batch, head, query, key) float32."""

    def __init__(self, attention: Attention) -> None:
        shape = (*attention.query.shape[:3], attention.key.shape[2])
        self.map = attention.query.new_zeros(shape, dtype=attention.exact)

    def part(self, batch: slice, heads: slice) -> Self:
        own = copy(self)
        own.map = self.map[batch, heads]
        return own

    def add(self, start: int, stop: int, probabilities: torch.Tensor, no_key: torch.Tensor | None = None) -> None:
        del no_key
        self.map[:, :, start:stop, : probabilities.shape[-1]] = probabilities

    def wanted(self) -> None:
        return None
