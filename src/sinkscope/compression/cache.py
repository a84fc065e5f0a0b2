"""Caches of a whole network that drop keys, growing or of a block, and the refusal of networks that can't.

Layers without attention and quantised or static caches hold no keys that could be dropped one by one: only the usual
full and sliding layers are served.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers import Cache

from sinkscope.compression.contents import LayerRules, check_protected
from sinkscope.compression.layers import BlockHolding, CompressedLayer, GrowingHolding, never_attended
from sinkscope.decoding.caches import BlockPlace, HeldLayer
from sinkscope.decoding.protocols import BlockLengths
from sinkscope.seeds import seed_from
from sinkscope.sinks.rules import KeyCounts


class CompressedCache(Cache):
    """Keys and values of all layers. Goes wherever transformers takes a `Cache`; made by `Compress.cache`."""

    dropping: list[CompressedLayer[GrowingHolding]]

    def __init__(self, dropping: list[CompressedLayer[GrowingHolding]]) -> None:
        super().__init__(layers=list(dropping))
        self.dropping = dropping

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Take the new keys and values of a layer; returns all that there are, to be attended to.

        Raises `UserError` where attention never came for those of the layer before.
        """
        before = self.dropping[layer_idx - 1].holding if layer_idx else None
        if before is not None and before.pending is not None:
            before.pending = None
            raise never_attended()
        return self.dropping[layer_idx].update(key_states, value_states, *args, **kwargs)

    def check_filled(self) -> None:
        """Raise `UserError` where a pass was made and left nothing in a layer."""
        if any(layer.holding.contents is None for layer in self.dropping):
            raise never_attended()

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the cache keeps alive, bookkeeping included."""
        return sum(layer.nbytes for layer in self.dropping)

    @property
    def lengths(self) -> list[int]:
        """Slots of each layer: the keys of the row that keeps most."""
        return [0 if layer.keys is None else layer.keys.shape[2] for layer in self.dropping]

    def for_rows(self, seeds: Sequence[int]) -> CompressedCache:
        """Copies of a cache of one row, a row for each seed, for questions after it. Nothing is shared with this
        one."""
        rows = torch.zeros(len(seeds), dtype=torch.long)
        copies = []
        for held in (layer.holding for layer in self.dropping):
            copy = GrowingHolding(held.rules, seeds, held.window)
            if held.contents is not None:
                copy.begin(held.contents.rows(rows), whole=held.whole, passes=held.passes)
                copy.prompt_goes_on = True
            copies.append(CompressedLayer(copy))
        return CompressedCache(copies)


@dataclass(frozen=True, kw_only=True)
class CompressedBlocks:
    """The same in the block caches of a diffusion model. A `decoding.protocols.BlockCompression`.

    The keys that may be dropped are the context's: those that passes after a block's first take from the cache. A
    budget counts them alone, as Sparse-dLLM does (2508.02558): 0.5 keeps `ceil(n / 2)` of the n real keys before the
    block, and with a dual cache after it. The block's own keys come on top.

    Where it misleads: every block begins with a full pass that commits something too, so short answers owe much of
    themselves to the whole cache; longer blocks show more of what dropping does.
    """

    rules: LayerRules
    seed: int
    heads: tuple[int, ...]
    """Query heads of each layer."""

    def check(self, blocks: Sequence[BlockLengths]) -> None:
        """Raise `UserError` for a budget that is smaller than what is protected, and for a rule that can't fire."""
        for one in blocks:
            check_protected(self.rules.scorer, self._fewest(one), one.context, one.before, one.prompt)
        keys = [one.context + one.fed for one in blocks]
        if keys:
            self.rules.budget.refuse(KeyCounts(fewest=min(keys), most=max(keys)))

    def fewest_keys(self, lengths: BlockLengths) -> int:
        """The fewest keys that a layer attends to in a pass over the cache."""
        return self._fewest(lengths) + lengths.fed

    def layers(self, place: BlockPlace, seeds: Sequence[int]) -> Sequence[HeldLayer]:
        """Empty layers of a block's cache. seeds: one a row, for random choices."""
        own = row_seeds(self.seed, seeds)
        rules = [replace(self.rules, layer=layer, heads=heads, block=place) for layer, heads in enumerate(self.heads)]
        return [CompressedLayer(BlockHolding(one, own, place)) for one in rules]

    def _fewest(self, lengths: BlockLengths) -> int:
        return min(self.rules.budget.kept(lengths.context, layer) for layer in range(len(self.heads)))


def row_seeds(own: int, seeds: Sequence[int] | None) -> list[int]:
    """One seed a row for random choices among keys, unlike those of sampling.

    own: the user's. seeds: of the prompts; None: the same for all rows.
    """
    return [seed_from(f"keys/{seed}/{own}") for seed in ([0] if seeds is None else seeds)]
