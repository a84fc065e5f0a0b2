"""Independent oracle for recordings: transformers' own eager attention maps of every pass that a sample says it made.

Nothing of the recorder is used: a pass is rebuilt from the canvas, the block and the rows fed, one sample at a time and
without padding. Where a block cache was at work, keys and values are taken from an eager pass over the canvas at the
block's beginning, in another order than the decoder keeps them in: rotated keys carry their position.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import xarray
from transformers import DynamicCache, PreTrainedModel


@dataclass(frozen=True)
class EagerPass:
    """One pass: `maps` (layer, head, query, key) for the queries `first` to `last`, norms (layer, kv_head, key)."""

    maps: torch.Tensor
    key_norm: torch.Tensor
    value_norm: torch.Tensor
    first: int
    last: int

    @property
    def received(self) -> torch.Tensor:
        """Mean over the queries, (layer, head, key)."""
        return self.maps.mean(2)

    @property
    def entropy(self) -> torch.Tensor:
        """Entropy of every query's row in nats, (layer, head, query)."""
        return -(self.maps * self.maps.clamp(min=1e-30).log()).sum(-1)


@contextmanager
def eager(network: PreTrainedModel) -> Iterator[None]:
    """Eager attention inside the block."""
    before = network.config._attn_implementation
    network.set_attn_implementation("eager")
    try:
        with torch.no_grad():
            yield
    finally:
        network.set_attn_implementation(before)


def causal_maps(network: PreTrainedModel, tokens: list[int]) -> torch.Tensor:
    """Maps (layer, head, query, key) of a sequence passed whole, as the network itself masks it."""
    with eager(network):
        found: torch.Tensor = torch.stack(network(torch.tensor([tokens]), output_attentions=True).attentions)[:, 0]
    return found


def passes_of(network: PreTrainedModel, sample: xarray.Dataset, canvases: torch.Tensor) -> list[EagerPass]:
    """Every pass of a bidirectional sample, from the given canvases (step, position)."""
    made: list[EagerPass] = []
    stored: list[tuple[torch.Tensor, torch.Tensor]] = []
    with eager(network):
        for step, canvas in enumerate(canvases):
            first, last = int(sample["query_start"][step]), int(sample["query_stop"][step])
            if last - first == len(canvas):
                cache, order = DynamicCache(), torch.arange(last)
            else:
                kept = torch.tensor([place for place in range(len(canvas)) if not first <= place < last])
                cache, order = _holding(stored, kept), torch.cat([kept, torch.arange(first, last)])
            made.append(_one_pass(network, canvas, first, last, cache, order))
            if last - first == len(canvas):
                stored = _states(cache)
    return made


def _states(cache: DynamicCache) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Keys and values of each layer, (1, kv_head, key, dim)."""
    return [(layer.keys, layer.values) for layer in cache.layers]  # type: ignore[union-attr,misc]


def _holding(stored: list[tuple[torch.Tensor, torch.Tensor]], kept: torch.Tensor) -> DynamicCache:
    cache = DynamicCache()
    for number, (keys, values) in enumerate(stored):
        cache.update(keys[:, :, kept], values[:, :, kept], number)
    return cache


def _one_pass(
    network: PreTrainedModel, canvas: torch.Tensor, first: int, last: int, cache: DynamicCache, order: torch.Tensor
) -> EagerPass:
    """Feed canvas[first:last] over the cache; `order`: which position each key of the result belongs to."""
    output = network(
        canvas[None, first:last],
        attention_mask=torch.zeros(1, 1, last - first, len(canvas)),
        position_ids=torch.arange(first, last)[None],
        cache=cache,
        use_cache=True,
        output_attentions=True,
    )
    back = order.argsort()
    keys, values = (torch.cat(states) for states in zip(*_states(cache), strict=True))
    return EagerPass(
        maps=torch.stack(output.attentions)[:, 0][..., back],
        key_norm=keys.norm(dim=-1)[..., back],
        value_norm=values.norm(dim=-1)[..., back],
        first=first,
        last=last,
    )


def group_of(sample: xarray.Dataset, step: int, place: int, mask: int) -> str:
    """The group that a position's query belongs to at a step, from the definitions."""
    start, stop = int(sample["block_start"][step]), int(sample["block_stop"][step])
    if place < sample.attrs["prompt_length"]:
        return "prompt"
    if place < start:
        return "committed"
    if place >= stop:
        return "later"
    return "block-masked" if int(sample["canvas"][step, place]) == mask else "block-committed"
