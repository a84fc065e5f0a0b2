"""A layer of transformers' `Cache` that drops keys: `CompressedLayer`, of a cache that grows and of a block cache.

To the network it is as long as the whole sequence: positions are counted and masks are made as if nothing had been
dropped. The attention function takes each layer's mask at the keys that are there (`attention.evicting`), so layers,
heads and rows may hold different keys, several tokens fed at once never see later ones, and sliding windows slide over
positions, not over slots. Until something is dropped masks pass through untouched, and a run is the plain run bit for
bit.

A pass goes: `add` the new keys, `gather_mask`, attend, `on_attention`, which drops what is due before the next layer
has any. What lies between two passes differs: a cache that grows keeps what is fed, a block cache its context alone.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Generic, TypeVar

import torch
from transformers.cache_utils import CacheLayerMixin

from sinkscope.attention.evicting import KeyIndex, newest_real, register_layer
from sinkscope.compression.contents import EMPTY, Contents, LayerRules
from sinkscope.decoding.caches import BlockLayer, BlockPlace, HeldLayer
from sinkscope.errors import UserError


def never_attended() -> UserError:
    """What to say where keys went into a cache and never came to the attention function that would drop them."""
    return UserError(
        "this network's attention does not go through sinkscope's attention function with the keys that it caches, so "
        "none can be dropped: it caches something else (latent attention, as in DeepSeek V3), another function was set "
        "after it was loaded, or a loop of another library runs it compiled; use another model, set attention "
        "'sinkscope' again, or run it in torch.compiler.set_stance('force_eager')"
    )


def _not_cropped(_: CacheLayerMixin, __: int) -> None:
    raise UserError(
        "keys that were dropped can't be had back, so this cache can't be cropped; decode without assistant"
    )


def _initialized(layer: CacheLayerMixin, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
    """Nothing is made beforehand."""
    del key_states, value_states
    layer.is_initialized = True


H = TypeVar("H", "GrowingHolding", "BlockHolding")


class CompressedLayer(HeldLayer, Generic[H]):  # type: ignore[no-untyped-call]
    """One layer, as transformers sees it."""

    drops = True
    is_croppable = False
    crop = _not_cropped
    lazy_initialization = _initialized

    def __init__(self, holding: H) -> None:
        self.is_sliding = holding.window is not None
        self.is_initialized = False
        self.holding: H = holding

    @property
    def keys(self) -> torch.Tensor | None:  # type: ignore[override]
        """(batch, kv_head, slot, head_dim)"""
        return None if (held := _stored(self.holding)) is None else held.keys

    @property
    def values(self) -> torch.Tensor | None:  # type: ignore[override]
        """(batch, kv_head, slot, head_dim)"""
        return None if (held := _stored(self.holding)) is None else held.values

    @property
    def nbytes(self) -> int:
        return 0 if (held := _stored(self.holding)) is None else held.nbytes

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: object, **__: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Take the new keys and values; returns all that there are, to be attended to."""
        self.is_initialized = True
        return self.holding.add(key_states, value_states)

    def hold(self) -> None:
        assert isinstance(self.holding, BlockHolding)
        self.holding.end_full_pass()

    def get_seq_length(self) -> int:
        """Columns before those of the next pass, dropped or not: what the next position follows from."""
        return self.holding.before

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Masks are made for the whole sequence, from its first column."""
        return self.holding.mask_width(query_length), 0

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Take these rows of the batch, in this order."""
        assert isinstance(self.holding, GrowingHolding)
        self.holding.pick(beam_idx)

    batch_select_indices = reorder_cache

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Every row `repeats` times."""
        assert isinstance(self.holding, GrowingHolding)
        self.holding.pick(torch.arange(len(self.holding.seeds)).repeat_interleave(repeats))

    def reset(self) -> None:
        """Forget everything but what the layer was made with."""
        assert isinstance(self.holding, GrowingHolding)
        self.holding = GrowingHolding(self.holding.rules, self.holding.given, self.holding.window)


class GrowingHolding:
    """What a layer of a growing cache holds, in the middle of a pass too. An `attention.evicting.EvictingLayer`.

    window: the keys that a query of a sliding layer sees, itself among them.
    """

    plain = None

    def __init__(self, rules: LayerRules, seeds: Sequence[int], window: int | None) -> None:
        self.rules, self.window = rules, window
        self.needs_received = rules.needs_received
        self.given = tuple(seeds)
        """The seeds of the prompts that the cache was made for."""
        self.seeds = self.given
        """One a row, once there are rows: a prompt may have several."""
        self.contents: Contents | None = None
        self.sinks: torch.Tensor | None = None
        """(batch, kv_head): how many keys the budget's rule called sinks when keys were last dropped."""
        self.passes = 0
        self.whole = True
        """Whether every column of the sequence still has its key."""
        self._read = 0
        """Columns of the first reading, where a scorer wants a second."""
        self.prompt_goes_on = False
        """Whether the next pass reads more of the prompt: the question after a prefix."""
        self.pending: tuple[torch.Tensor, torch.Tensor] | None = None
        """Keys and values that attention has not come for yet."""
        self._gaps = False
        """Whether any slot may be hidden from all queries: padding, or a row or head that keeps fewer keys than
        others."""

    @property
    def before(self) -> int:
        """Columns of the sequence so far."""
        return 0 if self.contents is None else self.contents.real.shape[1]

    def mask_width(self, queries: int) -> int:
        return self.before + queries

    @property
    def index(self) -> KeyIndex | None:
        """The columns of the keys; None while nothing was dropped."""
        return None if self.whole or self.contents is None else KeyIndex(self.contents.columns, self.before)

    def add(self, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Append new keys and values (batch, kv_head, query, head_dim) and hand all over to the attention function."""
        if self.pending is not None:
            self.pending = None
            raise never_attended()
        keys = keys.to(values.dtype)  # families that rotate in float32 hand over wider keys
        if self.contents is None:
            self.seeds = _seeds_for(keys.shape[0], self.seeds)
            # The network's own tensors may be views of larger ones.
            keys, values = (one.clone(memory_format=torch.contiguous_format) for one in (keys, values))
        elif keys.shape[0] != len(self.seeds):
            raise UserError(
                f"the cache holds {len(self.seeds)} rows, {keys.shape[0]} came; make one with as many seeds, one a row"
            )
        else:
            keys, values = self.contents.followed_by(keys, values)
        self.pending = keys, values
        register_layer(keys, self)
        return keys, values

    def gather_mask(self, mask: torch.Tensor | None, queries: int) -> torch.Tensor | None:
        """Place the new keys, and take the mask at the keys that are there."""
        self._place(mask, queries)
        index = self.index
        if index is None or (mask is None and queries == 1 and not self._gaps):
            return mask
        if mask is None:
            mask = _causal(self.before, queries, index.columns.device)
        return index.gather_mask(mask, self.rules.heads)

    def on_attention(self, query: torch.Tensor, scale: float, received: torch.Tensor | None) -> None:
        """Count what was received, drop what is due, and keep the queries that a scorer will ask for."""
        assert self.contents is not None
        if self.needs_received and received is not None:
            self.contents = self.contents.counted(received if self.index is None else self.index.gather(received))
        if self.rules.scorer.needs_queries:
            self.contents = self.contents.asked(query)
        self.settle(scale)

    def settle(self, scale: float) -> None:
        """End a pass: drop what has left the window, then what is due."""
        contents = self.contents
        assert contents is not None
        self.passes += 1
        if self.window is not None and contents.columns.shape[-1] >= self.window:
            contents, self.whole = contents.latest(self.window - 1), False
        read = contents
        if self.rules.scorer.rereads:
            # What is read a second time is not kept.
            contents = contents.until(self._read) if self.passes == 2 else contents
            self._read = contents.columns.shape[-1]
        counts = self.rules.due(contents.columns, self.passes)
        if counts is not None:
            left, self.sinks = self.rules.drop(contents, counts, self.seeds, scale, read)
            if left is not contents:
                self._gaps, self.whole = bool((left.columns == EMPTY).any()), False
            contents = left
        self.contents = contents.remembering(self.rules.remembers)

    def pick(self, rows: torch.Tensor) -> None:
        """Take these rows of the batch, in this order."""
        self.seeds = tuple(self.seeds[row] for row in rows.tolist())
        if self.contents is not None:
            self.contents = self.contents.rows(rows)

    def begin(self, contents: Contents, *, whole: bool, passes: int = 1) -> None:
        """Hold what another cache held after its passes."""
        self.contents, self.whole, self.passes = contents, whole, passes
        self.seeds = _seeds_for(contents.keys.shape[0], self.seeds)
        self._gaps = bool((contents.columns == EMPTY).any())

    def _place(self, mask: torch.Tensor | None, queries: int) -> None:
        """Note the columns of the new keys, and which of them are real."""
        assert self.pending is not None
        keys, values = self.pending
        batch, first, before = keys.shape[0], self.before, self.contents
        columns = torch.arange(first, first + queries, device=keys.device, dtype=torch.int32).view(1, 1, -1)
        if mask is None:
            real = torch.ones(batch, queries, dtype=torch.bool, device=keys.device)
            columns = columns.repeat(batch, 1, 1)
        else:
            real = newest_real(mask, first, queries).expand(batch, -1)
            columns = torch.where(real.unsqueeze(1), columns, EMPTY)
            self._gaps = self._gaps or not bool(real.all())
        if before is None:
            self.contents = Contents(keys=keys, values=values, columns=columns, real=real, prompt_length=real.sum(-1))
        else:
            heads = before.columns.shape[1]
            self.contents = replace(
                before,
                keys=keys,
                values=values,
                columns=torch.cat([before.columns, columns.expand(-1, heads, -1)], dim=-1),
                real=torch.cat([before.real, real], dim=-1),
                prompt_length=before.prompt_length + (real.sum(-1) if self.prompt_goes_on else 0),
                received=None if before.received is None else torch.nn.functional.pad(before.received, (0, queries)),
            )
        self.pending, self.prompt_goes_on = None, False


class BlockHolding:
    """What a layer of a block cache holds, in the middle of a pass too. An `attention.evicting.EvictingLayer`.

    The block's full pass fills the plain block cache. As soon as the layer's attention is done the kept keys of the
    context are chosen and the others freed. From then on every pass attends to the kept context, followed by the
    columns that it computed anew: the block's own, and with a `prefix` cache the later ones. A layer from which nothing
    is dropped is the plain block cache, bit for bit.
    """

    window: int | None = None

    def __init__(self, rules: LayerRules, seeds: Sequence[int], block: BlockPlace) -> None:
        self.rules, self.seeds, self._block = rules, tuple(seeds), block
        self.needs_received = rules.needs_received
        self.sinks: torch.Tensor | None = None
        """(batch, kv_head): how many keys of the context the budget's rule called sinks."""
        self.plain = BlockLayer(block)
        """The plain layer: used in the full pass, and after it while nothing was dropped."""
        self.contents: Contents | None = None
        """The context's keys that stayed, (batch, kv_head, slot) each; None while all are there."""
        self._attended = self._held = False
        self._gaps = False
        """Whether any slot is empty, because a head keeps fewer keys than others."""

    @property
    def before(self) -> int:
        return self._block.start if self._held else 0

    def mask_width(self, queries: int) -> int:
        return self._block.width if self._held else queries

    @property
    def index(self) -> KeyIndex | None:
        """The columns of the kept context, then those that are fed; None while nothing was dropped."""
        if self.contents is None:
            return None
        batch, kv_heads, _ = self.contents.columns.shape
        fed = torch.arange(*self._block.fed, device=self.contents.columns.device, dtype=torch.int32)
        return KeyIndex(torch.cat([self.contents.columns, fed.expand(batch, kv_heads, -1)], dim=-1), self._block.width)

    def add(self, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Take new keys and values (batch, kv_head, query, head_dim); returns all that the pass attends to."""
        if self.contents is None:
            keys, values = self.plain.update(keys, values)
        else:
            keys, values = self.contents.followed_by(keys.to(values.dtype), values)
        if self.contents is not None or not self._attended:
            register_layer(keys, self)
        return keys, values

    def gather_mask(self, mask: torch.Tensor | None, queries: int) -> torch.Tensor | None:
        """The mask at the keys that are there."""
        index = self.index
        if index is None or (mask is None and not self._gaps):
            return mask
        if mask is None:
            mask = torch.ones(1, 1, queries, index.width, dtype=torch.bool, device=index.columns.device)
        return index.gather_mask(mask, self.rules.heads)

    def on_attention(self, query: torch.Tensor, scale: float, received: torch.Tensor | None) -> None:
        """After the full pass: drop what is due of the context."""
        if self._attended:
            return
        self._attended = True
        real, (start, stop) = self._block.real.to(query.device), self._block.fed
        columns = torch.where(real, torch.arange(self._block.width, device=query.device), EMPTY).int()
        context = torch.cat([torch.arange(start), torch.arange(stop, self._block.width)]).to(query.device)
        counts = self.rules.due(columns[:, None, context], passes=1)
        if counts is None:
            return
        assert self.plain.keys is not None and self.plain.values is not None
        own, asks = slice(self._block.start, self._block.stop), self.rules.scorer.needs_queries
        seen = received if self.needs_received else None
        contents = Contents(
            keys=self.plain.keys.index_select(2, context),
            values=self.plain.values.index_select(2, context),
            columns=columns[:, None, context],
            real=real,
            prompt_length=real[:, : self._block.prompt_length].sum(-1),
            queries=query[:, :, own] if asks else None,
            query_columns=columns[:, own] if asks else None,
            received=seen.index_select(2, context) if seen is not None else None,
            fed_received=seen[..., start:stop] if seen is not None else None,
        )
        kept, self.sinks = self.rules.drop(contents, counts, self.seeds, scale, contents)
        if kept is contents:
            return
        self.contents = replace(kept, queries=None, query_columns=None, received=None, fed_received=None)
        self._gaps = bool((kept.columns == EMPTY).any())
        self.plain.keys = self.plain.values = None

    def end_full_pass(self) -> None:
        """From now on only some columns are fed. Raises `UserError` where attention never came for the keys."""
        if not self._attended:
            raise never_attended()
        self._held = True
        if self.contents is None:
            self.plain.hold()


def _stored(holding: GrowingHolding | BlockHolding) -> Contents | BlockLayer | None:
    return holding.contents or holding.plain


def _causal(width: int, queries: int, device: torch.device) -> torch.Tensor:
    """(1, 1, query, column) boolean: each of the last queries sees the columns up to its own."""
    columns = torch.arange(width, device=device)
    return (columns <= columns[width - queries :].unsqueeze(-1)).view(1, 1, queries, width)


def _seeds_for(rows: int, seeds: Sequence[int]) -> tuple[int, ...]:
    """One seed a row; a prompt may have several rows, which stand together (beams, or several answers)."""
    each, rest = divmod(rows, len(seeds)) if seeds else (0, rows)
    if rest or not each:
        raise UserError(f"the cache was made for {len(seeds)} prompts, {rows} came; make one for as many")
    return tuple(seed for seed in seeds for _ in range(each))
