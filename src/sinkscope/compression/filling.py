"""From a filled cache of transformers' own to one that drops keys.

    cache = DynamicCache(config=model.network.config)
    model.network(input_ids, cache=cache)
    cache = compress_cache(model, cache, Compress("key-norm", 0.5))

For loops that fill their cache themselves. A cache keeps keys and values alone, so scorers that need queries or
attention can't be used here: give `Compress(...).cache(model)` to the first pass instead.
"""

from collections.abc import Sequence

import torch
from transformers import Cache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from sinkscope.compression.cache import CompressedCache, windows_of
from sinkscope.compression.choosing import EMPTY
from sinkscope.compression.dropping import Contents
from sinkscope.compression.layers import DroppingLayer
from sinkscope.compression.settings import Compress
from sinkscope.errors import UserError
from sinkscope.families import Model

_PLAIN = (DynamicLayer, DynamicSlidingWindowLayer)


def compress_cache(
    model: Model,
    cache: Cache,
    compress: Compress,
    attention_mask: torch.Tensor | None = None,
    seeds: Sequence[int] | None = None,
) -> CompressedCache:
    """A cache with those keys of another that stay, as after a first pass. The other is left as it is.

    attention_mask (batch, column): zero where a column is padding. seeds: one a row, for random choices. Raises
    `UserError` for caches whose keys can't be dropped one by one (quantised, static), for one that is empty or another
    model's, and for a scorer that needs what a cache does not keep.
    """
    _check_kind(cache)
    scorer = compress.how
    if scorer.needs_queries or scorer.needs_received:
        kept_by_none = "queries" if scorer.needs_queries else "attention statistics"
        raise UserError(
            f"scorer {scorer.name!r} needs {kept_by_none}, and a filled cache keeps none; give the first pass "
            "cache=Compress(...).cache(model) instead"
        )
    keys = _first_keys(cache, model)
    real = torch.ones(keys.shape[0], cache.get_seq_length(), dtype=torch.bool, device=keys.device)
    if attention_mask is not None:
        if tuple(attention_mask.shape) != tuple(real.shape):
            raise UserError(
                f"attention_mask has the shape {tuple(attention_mask.shape)}, the cache holds {tuple(real.shape)}"
            )
        real = attention_mask.bool().to(keys.device)
    compress.check(model, real.sum(-1).tolist())
    compressed = compress.cache(model, seeds)
    for plain, dropping in zip(cache.layers, compressed.dropping, strict=True):
        assert isinstance(plain, DynamicLayer)
        _fill(dropping, plain, real)
    return compressed


def _check_kind(cache: Cache) -> None:
    if not isinstance(cache, Cache) or any(type(layer) not in _PLAIN for layer in cache.layers):
        raise UserError(
            f"keys can't be dropped from a {type(cache).__name__}: quantised, static and other caches are left alone; "
            "use a DynamicCache that was filled"
        )


def _first_keys(cache: Cache, model: Model) -> torch.Tensor:
    """Keys (batch, kv_head, key, head_dim) of the first layer, where every layer of the model has some."""
    held = [layer.keys for layer in cache.layers if isinstance(layer, DynamicLayer) and layer.keys is not None]
    if not held:
        raise UserError("the cache is empty; pass a context through the network first")
    if len(held) != len(windows_of(model)):
        raise UserError(
            f"the cache holds {len(held)} layers, {model.name} has {len(windows_of(model))}; give a cache of this model"
        )
    return held[0]


def _fill(dropping: DroppingLayer, plain: DynamicLayer, real: torch.Tensor) -> None:
    assert plain.keys is not None
    assert plain.values is not None
    width, slots = real.shape[1], plain.keys.shape[2]
    columns = torch.arange(width - slots, width, dtype=torch.int32, device=real.device)
    contents = Contents(
        keys=plain.keys.clone(),
        values=plain.values.clone(),
        columns=torch.where(real[:, width - slots :], columns, EMPTY).unsqueeze(1),
        real=real.clone(),
        prompt_length=real.sum(-1),
    )
    dropping.is_initialized = True
    dropping.holding.begin(contents, whole=slots == width, passes=0)
    dropping.holding.settle(1.0)
