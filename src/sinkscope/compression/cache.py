"""A cache of a whole network that drops keys, and the refusal of caches and networks that can't.

Layers without attention and quantised or static caches hold no keys that could be dropped one by one: only the usual
full and sliding layers are served.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import Cache
from transformers.cache_utils import get_layer_types_and_kwargs

from sinkscope.compression.budgets import Budget
from sinkscope.compression.dropping import LayerRules, never_attended
from sinkscope.compression.layers import DroppingLayer
from sinkscope.compression.scorers import Rotation, Scorer
from sinkscope.errors import UserError
from sinkscope.families import Model

_KINDS = ("full_attention", "sliding_attention")


class CompressedCache(Cache):
    """Keys and values of all layers. Goes wherever transformers takes a `Cache`; made by `Compress.cache`."""

    dropping: list[DroppingLayer]

    def __init__(self, dropping: list[DroppingLayer]) -> None:
        super().__init__(layers=list(dropping))
        self.dropping = dropping

    @classmethod
    def empty(
        cls,
        model: Model,
        *,
        scorer: Scorer,
        budget: Budget,
        first_pass: bool,
        prune_after: int | None,
        rotation: Rotation | None,
        seeds: Sequence[int],
    ) -> CompressedCache:
        """A cache without a key yet. Raises `UserError` for networks with layers of other kinds."""
        dropping = []
        for layer, window in enumerate(windows_of(model)):
            rules = LayerRules(
                scorer=scorer,
                budget=budget,
                layer=layer,
                heads=model.shape.heads,
                first_pass=first_pass,
                prune_after=prune_after,
                rotation=rotation,
            )
            dropping.append(DroppingLayer(rules, seeds, window))
        return cls(dropping)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Take the new keys and values of a layer; returns all that there are, to be attended to.

        Raises `UserError` where attention never came for those of the layer before.
        """
        before = self.dropping[layer_idx - 1].holding if layer_idx else None
        if before is not None and before.under_way is not None:
            before.under_way = None
            raise never_attended()
        return self.dropping[layer_idx].update(key_states, value_states, *args, **kwargs)

    def check_filled(self) -> None:
        """Raise `UserError` where a pass was made and left nothing in a layer."""
        if any(layer.holding.contents is None for layer in self.dropping):
            raise never_attended()

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the cache keeps alive, bookkeeping included."""
        contents = [layer.holding.contents for layer in self.dropping]
        return sum(one.nbytes for one in contents if one is not None)

    @property
    def lengths(self) -> list[int]:
        """Slots of each layer: the keys of the row that keeps most."""
        return [0 if layer.keys is None else layer.keys.shape[2] for layer in self.dropping]

    def for_rows(self, seeds: Sequence[int]) -> CompressedCache:
        """Copies of a cache of one row, a row for each seed, for questions after it. Nothing is shared with this
        one."""
        rows = torch.zeros(len(seeds), dtype=torch.long)
        copies = []
        for layer in self.dropping:
            held = layer.holding
            copy = DroppingLayer(held.rules, seeds, held.window)
            if held.contents is not None:
                copy.holding.begin(held.contents.rows(rows), whole=held.whole, passes=held.passes)
                copy.holding.prompt_goes_on = True
            copies.append(copy)
        return CompressedCache(copies)


def windows_of(model: Model) -> list[int | None]:
    """The window of each layer, None where it sees everything. Raises `UserError` for layers of other kinds."""
    kinds, settings = get_layer_types_and_kwargs(model.network.config.get_text_config(decoder=True))
    other = [kind for kind in kinds if kind not in _KINDS]
    if other:
        raise UserError(
            f"{model.name} has layers of the kind {other[0]}, from which keys can't be dropped; use a model with full "
            "or sliding attention"
        )
    return [one.get("sliding_window") for one in settings]
