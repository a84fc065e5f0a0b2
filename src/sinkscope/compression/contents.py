"""What a layer of a cache holds, and which of it stays: the tensors, the rules of a layer, and the choice itself.

`Contents` are plain tensors and do nothing by themselves. `LayerRules` say what is dropped and when, the same for all
rows. `choose_kept` goes from importance to the keys that stay, a pure function that all caches share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch

from sinkscope.compression.budgets import Budget
from sinkscope.compression.scorers import CachedLayer, Rotation, Scorer
from sinkscope.compression.scorers.base import places
from sinkscope.compression.scorers.by_query import at_queries, last_real
from sinkscope.decoding.caches import BlockPlace
from sinkscope.errors import UserError

EMPTY = -1
"""A slot without a key: rows that keep fewer keys than others have empty slots on the left."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Contents:
    """What a layer holds after a pass. All tensors have the batch first, and none is a view of a larger one."""

    keys: torch.Tensor
    """(batch, kv_head, slot, head_dim)"""
    values: torch.Tensor
    """(batch, kv_head, slot, head_dim)"""
    columns: torch.Tensor
    """(batch, 1 or kv_head, slot) int32: the column of the sequence that each slot's key stands for, `EMPTY` for
    padding and where a row keeps fewer keys than others. Ascending."""
    real: torch.Tensor
    """(batch, column) boolean: which columns of the sequence, dropped or not, are no padding."""
    prompt_length: torch.Tensor
    """(batch,) real tokens of the first pass, and of the question where a prefix came before it."""
    queries: torch.Tensor | None = None
    """(batch, head, query, head_dim): the latest of each row, as many as the scorer remembers."""
    query_columns: torch.Tensor | None = None
    """(batch, query) int32: the column of each of `queries`, `EMPTY` for padding. Rows may differ."""
    received: torch.Tensor | None = None
    """(batch, head, slot) float32: attention paid to each key so far."""
    fed_received: torch.Tensor | None = None
    """(batch, head, column) float32: the same of the columns that a block cache computes anew."""

    def rows(self, index: torch.Tensor) -> Contents:
        """The rows of a batch named by `index`, in that order, as fresh tensors."""
        picked = {
            one.name: value.index_select(0, index.to(value.device))
            for one in fields(self)
            if (value := getattr(self, one.name)) is not None
        }
        return replace(self, **picked)

    @property
    def nbytes(self) -> int:
        """Bytes of the storage that is kept alive, bookkeeping included."""
        tensors = [getattr(self, one.name) for one in fields(self)]
        return sum(tensor.untyped_storage().nbytes() for tensor in tensors if tensor is not None)

    def followed_by(self, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The keys and values that are held, and new ones, (batch, kv_head, query, head_dim), after them."""
        return torch.cat([self.keys, keys], dim=2), torch.cat([self.values, values], dim=2)

    def counted(self, received: torch.Tensor) -> Contents:
        """With the attention (batch, head, slot) added that the keys received in a pass."""
        return replace(self, received=received.float() if self.received is None else self.received + received)

    def asked(self, query: torch.Tensor) -> Contents:
        """With the queries (batch, head, query, head_dim) of a pass, which are those of the last columns."""
        width, count = self.real.shape[1], query.shape[2]
        columns = torch.arange(width - count, width, dtype=torch.int32, device=self.real.device)
        columns = torch.where(self.real[:, width - count :], columns, EMPTY)
        if self.queries is not None and self.query_columns is not None:
            query = torch.cat([self.queries, query], dim=2)
            columns = torch.cat([self.query_columns, columns], dim=-1)
        return replace(self, queries=query, query_columns=columns)

    def remembering(self, count: int) -> Contents:
        """With the last `count` queries of each row alone, padding left out where there are enough others."""
        if self.queries is None or self.query_columns is None:
            return self
        if not count:
            return replace(self, queries=None, query_columns=None)
        latest = last_real(self.query_columns != EMPTY, count)
        return replace(
            self, queries=at_queries(self.queries, latest), query_columns=self.query_columns.gather(-1, latest)
        )

    def latest(self, slots: int) -> Contents:
        """With the last slots alone. Columns are distinct and ascend, so that a slot with n others to its right stands
        at least n columns back: what has left a window lies on the left of all heads."""
        first = self.columns.shape[-1] - slots
        return replace(
            self,
            keys=self.keys[:, :, first:].clone(),
            values=self.values[:, :, first:].clone(),
            columns=self.columns[..., first:].clone(),
            received=None if self.received is None else self.received[..., first:].clone(),
        )

    def until(self, columns: int) -> Contents:
        """The first columns alone, of contents from which nothing was dropped, without queries."""
        return replace(
            self,
            keys=self.keys[:, :, :columns].clone(),
            values=self.values[:, :, :columns].clone(),
            columns=self.columns[..., :columns].clone(),
            real=self.real[:, :columns].clone(),
            queries=None,
            query_columns=None,
        )

    def columns_by_head(self) -> torch.Tensor:
        """`columns` of every head, (batch, kv_head, slot) int64."""
        return self.columns.expand(-1, self.keys.shape[1], -1).long()

    def positions(self) -> torch.Tensor:
        """Position in its row of every column, (batch, column); 0 for padding on the left."""
        return (self.real.long().cumsum(-1) - 1).clamp(min=0)


@dataclass(frozen=True, kw_only=True)
class LayerRules:
    """What is dropped from one layer, and when.

    heads: query heads. first_pass: whether the first pass is followed by dropping. prune_after: rows longer than this
    are cut after any pass; None: never again. block: the block whose cache this is, which drops keys of its context
    alone; None in a cache that grows.
    """

    scorer: Scorer
    budget: Budget
    layer: int
    heads: int
    rotation: Rotation | None
    first_pass: bool = True
    prune_after: int | None = None
    block: BlockPlace | None = None

    @property
    def here(self) -> Budget:
        """The budget of this layer."""
        return self.budget.at(self.layer)

    @property
    def needs_received(self) -> bool:
        """Whether the scorer, or the budget here, must know what keys received."""
        return self.scorer.needs_received or self.here.needs_received

    @property
    def remembers(self) -> int:
        """Queries to keep from pass to pass, for what may still be dropped."""
        return 0 if self.prune_after is None else self.scorer.remembers

    def due(self, columns: torch.Tensor, passes: int) -> list[int] | None:
        """How many keys stay in each row, the fewest where attention decides; None where nothing is to be dropped.

        columns: as in `Contents`. passes: made so far, with this one.
        """
        first = self.first_pass and passes == (2 if self.scorer.rereads else 1)
        if not first and (self.prune_after is None or columns.shape[-1] <= self.prune_after):
            return None
        lengths = (columns != EMPTY).sum(-1).amax(-1).tolist()
        cut = [first or (self.prune_after is not None and length > self.prune_after) for length in lengths]
        kept = [self.budget.kept(n, self.layer) if now else n for n, now in zip(lengths, cut, strict=True)]
        return None if kept == lengths else kept

    def drop(
        self, contents: Contents, counts: Sequence[int], seeds: Sequence[int], scale: float, read: Contents
    ) -> tuple[Contents, torch.Tensor | None]:
        """What is left when each row keeps `counts` keys, as `due` said; the same contents where that is all of it.
        And under a budget of sinks how many there were, (batch, kv_head).

        read: what importance is judged by: the same contents, or with those of a second reading after them.
        """
        if self.needs_received and contents.received is None:
            raise UserError(f"{self.wants_statistics}: run it inside `with ss.watch(model):`")
        seen = self.shown(contents, seeds, scale)
        judged = seen if read is contents else self.shown(read, seeds, scale)
        held = seen.real.sum(-1)  # (batch, kv_head)
        least = torch.tensor(counts, device=held.device).view(-1, 1)
        kept, importance = torch.minimum(least, held), None
        if self.here.by_head:
            # Rows that are not cut now are due all that they hold.
            importance = self._importance(judged, None)[..., : seen.keys.shape[2]]
            kept = torch.where(least < held.amax(-1, True), self.here.counts(seen, importance), held)
        for row in zip(kept.amin(-1), held.amin(-1), seen.length, seen.prompt_length, strict=True):
            check_protected(self.scorer, *(int(one) for one in row))
        sinks = seen.sinks.sum(-1) if self.here.needs_received else None
        if bool((kept == held).all()):
            return contents, sinks
        if importance is None:
            importance = self._importance(judged, kept)[..., : seen.keys.shape[2]]
        left = only_kept(contents, choose_kept(importance, seen.real, kept))
        return (self._closed_up(left, held, contents) if self.scorer.rerotates else left), sinks

    def _importance(self, judged: CachedLayer, kept: torch.Tensor | None) -> torch.Tensor:
        """(batch, kv_head, key), of which so many stay, (batch, kv_head), where that is known before.

        Raises `UserError` for what is none.
        """
        importance = self.scorer.importance(replace(judged, counts=kept))
        if importance.shape != judged.real.shape or bool(importance.isnan().all()):
            wanted = tuple(judged.real.shape)
            raise UserError(
                f"scorer {self.scorer.name!r} must give numbers (batch, kv_head, key) = {wanted}, one at least, got "
                f"{'NaN alone' if importance.shape == judged.real.shape else tuple(importance.shape)}"
            )
        return importance

    def _closed_up(self, left: Contents, held: torch.Tensor, before: Contents) -> Contents:
        """Keys that stay, rotated to the positions right before what follows. Attention depends on distances alone, so
        that is the same as counting positions inside the cache.

        held (batch, kv_head): keys before. They have always stood without a gap.
        """
        assert self.rotation is not None
        length = before.real.sum(-1).view(-1, 1, 1)
        columns, there = before.columns_by_head(), left.columns_by_head()
        rank = torch.searchsorted(columns.contiguous(), there.contiguous()) - (columns == EMPTY).sum(-1, keepdim=True)
        slots = there.shape[-1]
        new = torch.arange(slots, device=length.device) - slots + length
        old = length - held.unsqueeze(-1) + rank
        empty = there == EMPTY
        moved = self.rotation.moved(left.keys.float(), old.masked_fill(empty, 0), new.clamp(min=0))
        return replace(left, keys=moved.to(left.keys.dtype))

    @property
    def wants_statistics(self) -> str:
        """What to say where nobody watches."""
        who = f"scorer {self.scorer.name!r}" if self.scorer.needs_received else "a budget of sinks"
        return f"{who} needs attention statistics"

    def shown(self, contents: Contents, seeds: Sequence[int], scale: float) -> CachedLayer:
        """What a scorer sees of a layer."""
        positions, block = contents.positions(), self.block
        columns, asking = contents.columns_by_head(), contents.query_columns
        of_slots = positions.unsqueeze(1).expand(-1, columns.shape[1], -1).gather(-1, columns.clamp(min=0))
        return CachedLayer(
            keys=contents.keys,
            values=contents.values,
            positions=of_slots,
            real=columns != EMPTY,
            layer=self.layer,
            length=(contents.real if block is None else contents.real[:, : block.start]).sum(-1),
            block_length=0 if block is None else block.stop - block.start,
            seeds=tuple(seeds),
            prompt_length=contents.prompt_length,
            causal=block is None,
            queries=contents.queries,
            query_positions=None if asking is None else positions.gather(-1, asking.clamp(min=0).long()),
            query_real=None if asking is None else asking != EMPTY,
            scale=scale,
            received=contents.received if self.needs_received else None,
            fed_received=contents.fed_received,
            rule=self.here.rule,
            rotation=self.rotation,
        )


def choose_kept(importance: torch.Tensor, real: torch.Tensor, counts: Sequence[int] | torch.Tensor) -> torch.Tensor:
    """The keys that stay: indices (batch, kv_head, slot) into the keys, ascending, `EMPTY` on the left where a row or a
    head keeps fewer than others.

    importance (batch, kv_head, key): NaN counts as the lowest, of equals the one further left stays. real (batch,
    kv_head, key) boolean: the keys that there are. counts: how many stay in each row, (batch,), or in each of its
    heads, (batch, kv_head); all of them where there are fewer.
    """
    keys = importance.shape[-1]
    wanted = torch.as_tensor(counts, device=importance.device).reshape(len(counts), -1, 1)
    stays = (places(importance, real) < wanted) & real
    chosen = torch.where(stays, torch.arange(keys, device=importance.device), EMPTY).sort(dim=-1).values
    longest = int(stays.sum(-1).max()) if stays.numel() else 0
    return chosen[..., keys - longest :]


def only_kept(contents: Contents, kept: torch.Tensor) -> Contents:
    """The slots `kept` (batch, kv_head, slot) of a layer's contents, as fresh tensors."""
    index = kept.clamp(min=0)
    columns = contents.columns.expand(-1, kept.shape[1], -1).gather(-1, index)
    received = contents.received
    if received is not None:
        groups = received.shape[1] // kept.shape[1]
        received = received.gather(-1, index.repeat_interleave(groups, dim=1))
    return replace(
        contents,
        keys=_at_slots(contents.keys, index),
        values=_at_slots(contents.values, index),
        columns=columns.masked_fill(kept == EMPTY, EMPTY),
        received=received,
    )


def _at_slots(vectors: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Vectors (batch, kv_head, slot, dim) at some slots, (batch, kv_head, slot): six times as fast as `gather`."""
    batch, heads, slots, dim = vectors.shape
    first = torch.arange(batch * heads, device=index.device).view(batch, heads, 1) * slots
    picked = vectors.reshape(-1, dim).index_select(0, (first + index).flatten())
    return picked.view(batch, heads, -1, dim)


def check_protected(scorer: Scorer, count: int, held: int, length: int, prompt_length: int) -> None:
    """Raise `UserError` for a budget of `count` of the `held` keys of a row that is smaller than what is protected.

    length: real tokens of the row so far, `prompt_length` of them prompt.
    """
    protected = scorer.protects(length, prompt_length)
    if count < min(protected, held):
        raise UserError(f"{count} of {held} keys would stay, {protected} are protected; keep more or protect fewer")
