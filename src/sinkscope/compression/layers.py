"""A layer of transformers' `Cache` that drops keys.

To the network it is as long as the whole sequence: positions are counted and masks are made as if nothing had been
dropped. The attention function then narrows each layer's mask to the keys that are there (`attention.evicting`), so
layers and heads may hold different keys, several tokens fed at once never see later ones, and sliding windows slide
over positions, not over slots. Until something is dropped masks pass through untouched, and a run is the plain run bit
for bit.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from transformers.cache_utils import CacheLayerMixin

from sinkscope.attention.evicting import KeyIndex, newest_real, register_layer
from sinkscope.compression.choosing import EMPTY
from sinkscope.compression.dropping import Contents, LayerRules, never_attended
from sinkscope.errors import UserError


def _not_cropped(_: CacheLayerMixin, __: int) -> None:
    raise UserError(
        "keys that were dropped can't be had back, so this cache can't be cropped; decode without assistant"
    )


class DroppingLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """One layer, as transformers sees it. window: the keys that a query of a sliding layer sees, itself among them."""

    is_compileable = False
    is_croppable = False
    crop = _not_cropped

    def __init__(self, rules: LayerRules, seeds: Sequence[int], window: int | None) -> None:
        self.is_sliding = window is not None
        self.is_initialized = False
        self.holding = Holding(rules, seeds, window)

    @property
    def keys(self) -> torch.Tensor | None:  # type: ignore[override]
        """(batch, kv_head, slot, head_dim)"""
        return None if self.holding.contents is None else self.holding.contents.keys

    @property
    def values(self) -> torch.Tensor | None:  # type: ignore[override]
        """(batch, kv_head, slot, head_dim)"""
        return None if self.holding.contents is None else self.holding.contents.values

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

    def get_seq_length(self) -> int:
        """Columns of the sequence so far, dropped or not: what the next position follows from."""
        return self.holding.width

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Masks are made for the whole sequence, from its first column."""
        return self.holding.width + query_length, 0

    def get_max_length(self) -> int:
        """No limit."""
        return -1

    def reset(self) -> None:
        """Forget everything but what the layer was made with."""
        holding = self.holding
        self.holding = Holding(holding.rules, holding.given, holding.window)

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Take these rows of the batch, in this order."""
        self.holding.pick(beam_idx)

    batch_select_indices = reorder_cache

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Every row so many times."""
        self.holding.pick(torch.arange(len(self.holding.seeds)).repeat_interleave(repeats))


class Holding:
    """What a layer holds, in the middle of a pass too. Implements `attention.evicting.EvictingLayer`."""

    def __init__(self, rules: LayerRules, seeds: Sequence[int], window: int | None) -> None:
        self.rules = rules
        self.given = tuple(seeds)
        """The seeds of the prompts that the cache was made for."""
        self.seeds = self.given
        """One a row, once there are rows: a prompt may have several."""
        self.window = window
        self.contents: Contents | None = None
        self.passes = 0
        self.whole = True
        """Whether every column of the sequence still has its key."""
        self.prompt_goes_on = False
        """Whether the next pass reads more of the prompt: the question after a prefix."""
        self.under_way: tuple[torch.Tensor, torch.Tensor] | None = None
        """Keys and values that attention has not come for yet."""
        self._gaps = False
        """Whether any slot may be hidden from all queries: padding, or a row that keeps fewer keys than others."""

    @property
    def width(self) -> int:
        """Columns of the sequence so far."""
        return 0 if self.contents is None else self.contents.real.shape[1]

    @property
    def needs_received(self) -> bool:
        return self.rules.scorer.needs_received

    @property
    def index(self) -> KeyIndex | None:
        """Where the keys stand; None while nothing was dropped."""
        return None if self.whole or self.contents is None else KeyIndex(self.contents.columns, self.width)

    def add(self, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Append new keys and values (batch, kv_head, query, head_dim) and hand all over to the attention function."""
        if self.under_way is not None:
            self.under_way = None
            raise never_attended()
        keys = keys.to(values.dtype)  # families that rotate in float32 hand over wider keys
        if self.contents is not None:
            _check_rows(keys.shape[0], len(self.seeds))
            keys = torch.cat([self.contents.keys, keys], dim=2)
            values = torch.cat([self.contents.values, values], dim=2)
        else:
            self.seeds = _seeds_for(keys.shape[0], self.seeds)
            # The network's own tensors may be views of larger ones.
            keys, values = keys.clone(), values.clone()
        self.under_way = keys, values
        register_layer(keys, self)
        return keys, values

    def gather_mask(self, mask: torch.Tensor | None, queries: int) -> torch.Tensor | None:
        """Place the new keys, and take the mask at the keys that are there."""
        self._place(mask, queries)
        assert self.contents is not None
        if self.whole:
            return mask
        if mask is None:
            if queries == 1 and not self._gaps:
                return None
            mask = _causal(self.width, queries, self.contents.keys.device)
        return KeyIndex(self.contents.columns, self.width).gather_mask(mask, self.rules.heads)

    def on_attention(self, query: torch.Tensor, scale: float, received: torch.Tensor | None) -> None:
        """Count what was received, drop what is due, and keep the queries that a scorer will ask for."""
        assert self.contents is not None
        scorer = self.rules.scorer
        if scorer.needs_received and received is not None:
            at_keys = received if self.index is None else self.index.gather(received)
            self.contents = self.contents.counted(at_keys)
        if scorer.needs_queries:
            self.contents = self.contents.asked(query)
        self.settle(scale)

    def settle(self, scale: float) -> None:
        """End a pass: drop what has left the window, then what is due."""
        contents = self.contents
        assert contents is not None
        self.passes += 1
        if self.window is not None and contents.columns.shape[-1] >= self.window:
            contents, self.whole = contents.latest(self.window - 1), False
        counts = self.rules.due(contents, self.passes)
        if counts is not None:
            contents = self.rules.drop(contents, counts, self.seeds, scale)
            self._gaps, self.whole = len(set(counts)) > 1, False
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
        assert self.under_way is not None
        keys, values = self.under_way
        batch, first, before = keys.shape[0], self.width, self.contents
        real = torch.ones(batch, queries, dtype=torch.bool, device=keys.device)
        if mask is not None:
            real = newest_real(mask, first, queries).expand(batch, -1)
            self._gaps = self._gaps or not bool(real.all())
        columns = torch.arange(first, first + queries, device=keys.device, dtype=torch.int32)
        columns = torch.where(real, columns, EMPTY).unsqueeze(1)
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
                prompt_length=before.prompt_length + real.sum(-1) * self.prompt_goes_on,
                received=None if before.received is None else torch.nn.functional.pad(before.received, (0, queries)),
            )
        self.under_way, self.prompt_goes_on = None, False


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


def _check_rows(rows: int, held: int) -> None:
    """Raise `UserError` for a pass of more or fewer rows than the cache holds."""
    if rows != held:
        raise UserError(f"the cache holds {held} rows, {rows} came; make one with as many seeds, one a row")
