"""A layer of a diffusion model's block cache that drops keys of the context.

The block's full pass fills it; as soon as the layer's attention is done the kept keys are chosen and the others freed,
before the next layer has any. From then on every pass attends to the kept context, followed by the columns that it
computed anew: the block's own, and with a `prefix` cache the later ones. To the network the layer is as wide as the
canvas; the mask is narrowed to the keys that are there (`attention.evicting`), so layers, heads and rows may hold
different ones. A layer from which nothing is dropped is the plain block cache, bit for bit.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from sinkscope.attention.evicting import KeyIndex, register_layer
from sinkscope.compression.budgets import Budget
from sinkscope.compression.choosing import EMPTY, choose_kept
from sinkscope.compression.dropping import (
    Contents,
    at_columns,
    check_protected,
    check_received,
    never_attended,
    only_kept,
)
from sinkscope.compression.scorers import CachedLayer, Rotation, Scorer
from sinkscope.decoding.caches import BlockLayer, BlockPlace, HeldLayer


@dataclass(frozen=True, kw_only=True)
class BlockRules:
    """What is dropped from one layer. heads: query heads. seeds: one a row."""

    scorer: Scorer
    budget: Budget
    layer: int
    heads: int
    rotation: Rotation | None
    seeds: tuple[int, ...]

    def due(self, real: torch.Tensor) -> list[int] | None:
        """How many keys of the context stay in each row; None where that is all. real (batch, column) boolean."""
        lengths = real.sum(-1).tolist()
        kept = [self.budget.kept(length, self.layer) for length in lengths]
        return None if kept == lengths else kept

    def drop(
        self, context: Contents, place: BlockPlace, counts: Sequence[int], queries: torch.Tensor, scale: float
    ) -> Contents:
        """What is left when each row keeps so many keys. queries (batch, head, query, head_dim): the block's."""
        seen = self._shown(context, place, queries, scale)
        rows = zip(counts, seen.real[:, 0].sum(-1).tolist(), seen.length.tolist(), strict=True)
        for (count, held, length), prompt in zip(rows, seen.prompt_length.tolist(), strict=True):
            check_protected(self.scorer, count, held, length, prompt)
        kept = choose_kept(self.scorer.importance(seen), seen.real, counts)
        return only_kept(replace(context, received=None), kept)

    def _shown(self, context: Contents, place: BlockPlace, queries: torch.Tensor, scale: float) -> CachedLayer:
        scorer = self.scorer
        check_received(scorer, context)
        positions, block = context.positions(), slice(place.start, place.stop)
        columns = context.columns_by_head()
        return CachedLayer(
            keys=context.keys,
            values=context.values,
            positions=at_columns(positions, columns),
            real=columns != EMPTY,
            layer=self.layer,
            length=context.real[:, : place.start].sum(-1),
            block_length=place.stop - place.start,
            seeds=self.seeds,
            prompt_length=context.prompt_length,
            causal=False,
            queries=queries if scorer.needs_queries else None,
            query_positions=positions[:, block] if scorer.needs_queries else None,
            query_real=context.real[:, block] if scorer.needs_queries else None,
            scale=scale,
            received=context.received if scorer.needs_received else None,
            rotation=self.rotation,
        )


class DroppingBlockLayer(HeldLayer):  # type: ignore[no-untyped-call]
    """One layer, as transformers sees it."""

    def __init__(self, rules: BlockRules, place: BlockPlace) -> None:
        self.is_initialized = False
        self.holding = BlockHolding(rules, place)
        self._place = place
        self._held = False

    @property
    def keys(self) -> torch.Tensor | None:  # type: ignore[override]
        """(batch, kv_head, slot, head_dim): the kept context, or everything where nothing is dropped."""
        return self.holding.whole.keys if self.holding.kept is None else self.holding.kept.keys

    @property
    def values(self) -> torch.Tensor | None:  # type: ignore[override]
        """(batch, kv_head, slot, head_dim)"""
        return self.holding.whole.values if self.holding.kept is None else self.holding.kept.values

    @property
    def nbytes(self) -> int:
        kept = self.holding.kept
        return self.holding.whole.nbytes if kept is None else kept.nbytes

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing to make beforehand."""
        del key_states, value_states
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: object, **__: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Take the new keys and values; returns all that there are, to be attended to."""
        self.is_initialized = True
        return self.holding.add(key_states, value_states)

    def hold(self) -> None:
        self._held = True
        self.holding.end_full_pass()

    def get_seq_length(self) -> int:
        """Positions that the next pass does not feed."""
        return self._place.start if self._held else 0

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Masks are made for the whole canvas."""
        return (self._place.width if self._held else query_length), 0


class BlockHolding:
    """What a layer holds, in the middle of a pass too. Implements `attention.evicting.EvictingLayer`."""

    def __init__(self, rules: BlockRules, place: BlockPlace) -> None:
        self.rules = rules
        self.whole = BlockLayer(place)
        """The plain layer: used in the full pass, and after it while nothing was dropped."""
        self.kept: Contents | None = None
        """The context's keys that stayed, (batch, kv_head, slot) each; None while all are there."""
        self._place = place
        self._attended = False

    @property
    def needs_received(self) -> bool:
        return self.rules.scorer.needs_received

    @property
    def index(self) -> KeyIndex | None:
        """Where the keys stand: the kept context, then the columns that are fed; None while nothing was dropped."""
        if self.kept is None:
            return None
        batch, kv_heads, _ = self.kept.columns.shape
        fed = torch.arange(*self._place.fed, device=self.kept.columns.device, dtype=torch.int32)
        columns = torch.cat([self.kept.columns, fed.expand(batch, kv_heads, -1)], dim=-1)
        return KeyIndex(columns, self._place.width)

    def add(self, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Take new keys and values (batch, kv_head, query, head_dim); returns all that the pass attends to."""
        if self.kept is not None:
            keys = torch.cat([self.kept.keys, keys.to(values.dtype)], dim=2)
            values = torch.cat([self.kept.values, values], dim=2)
        else:
            keys, values = self.whole.update(keys, values)
        if self.kept is not None or not self._attended:
            register_layer(keys, self)
        return keys, values

    def gather_mask(self, mask: torch.Tensor | None, queries: int) -> torch.Tensor | None:
        """The mask at the keys that are there. Without one no row is padded, so all rows keep as many keys."""
        del queries
        index = self.index
        return mask if mask is None or index is None else index.gather_mask(mask, self.rules.heads)

    def on_attention(self, query: torch.Tensor, scale: float, received: torch.Tensor | None) -> None:
        """After the full pass: drop what is due of the context."""
        if self._attended:
            return
        self._attended = True
        place, real = self._place, self._place.real.to(query.device)
        start, stop = place.fed
        columns = torch.cat([torch.arange(start), torch.arange(stop, place.width)]).to(query.device)
        counts = self.rules.due(real[:, columns])
        if counts is not None:
            context = self._context(columns, real, received if self.needs_received else None)
            self.kept = self.rules.drop(context, place, counts, query[:, :, place.start : place.stop], scale)
            self.whole.keys = self.whole.values = None

    def end_full_pass(self) -> None:
        """From now on only some columns are fed. Raises `UserError` where nobody came to choose what is dropped."""
        if not self._attended:
            raise never_attended()
        if self.kept is None:
            self.whole.hold()

    def _context(self, columns: torch.Tensor, real: torch.Tensor, received: torch.Tensor | None) -> Contents:
        """Keys and values of some columns. real (batch, column) boolean; received (batch, head, column)."""
        assert self.whole.keys is not None
        assert self.whole.values is not None
        return Contents(
            keys=self.whole.keys.index_select(2, columns),
            values=self.whole.values.index_select(2, columns),
            columns=torch.where(real[:, columns], columns, EMPTY).int().unsqueeze(1),
            real=real,
            prompt_length=real[:, : self._place.prompt_length].sum(-1),
            received=None if received is None else received.index_select(2, columns),
        )
