"""A context that was read before: a prefix for many questions, or a cache that another loop has filled.

    prefix = compress_prefix(model, context, Compress("key-norm", 0.5))
    generate(model, ["What is ...?", "Who was ...?"], settings, compression=prefix)
    model.network.generate(whole_ids, cache=prefix.cache(model))

A prefix is read once and compressed before any question is seen. Every question gets its own copy of the cache; the
prefix itself never changes. The text of a question goes on after the context, so no special tokens are put before it.

    cache = DynamicCache(config=model.network.config)
    model.network(input_ids, cache=cache)
    cache = compress_cache(model, cache, Compress("key-norm", 0.5))

A cache keeps keys and values alone, so scorers that need queries or attention can't be used on a filled one: give
`Compress(...).cache(model)` to the first pass instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch
from transformers import Cache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from sinkscope.compression.cache import CompressedCache, row_seeds
from sinkscope.compression.contents import EMPTY, Contents
from sinkscope.compression.layers import GrowingHolding
from sinkscope.compression.networks import windows_of
from sinkscope.compression.settings import Compress, check_model, check_pruning, empty_cache
from sinkscope.decoding.canvas import Canvas, Prompts, check_autoregressive, encode_prompts
from sinkscope.decoding.forward import Feed, Forward
from sinkscope.decoding.sampling import prompt_seeds
from sinkscope.errors import UserError
from sinkscope.families import Model
from sinkscope.families.describe import Identity, check_identity, identity_of

_REPEAT = "\n\nRepeat the previous context exactly.\n"
"""As in kvpress 0.5.5, for models without a chat template."""
_PLAIN = (DynamicLayer, DynamicSlidingWindowLayer)


@dataclass(frozen=True, kw_only=True, eq=False)
class Prefix:
    """A context in a compressed cache. Made by `compress_prefix` or `load_prefix`."""

    tokens: tuple[int, ...] = field(repr=False)
    compress: Compress
    identity: Identity
    kept: CompressedCache = field(repr=False)
    """The cache of one row. Use `cache`, which copies it."""

    @property
    def prefix(self) -> tuple[int, ...]:
        """Token ids of the context."""
        return self.tokens

    @property
    def nbytes(self) -> int:
        """Bytes of the compressed cache."""
        return self.kept.nbytes

    def check(self, model: Model, lengths: Sequence[int]) -> None:
        """Raise `UserError` for a model that did not make it, and for prompts that can't go on together.

        lengths: of the prompts, context included.
        """
        check_identity(self.identity, model, "the prefix")
        check_model(self.compress, model)
        check_pruning(self.compress, model, lengths)
        # Padding lies between the prefix and the shorter questions, and would move their windows.
        if len(set(lengths)) > 1 and any(window is not None for window in windows_of(model)):
            raise UserError(
                f"{model.name} has sliding windows: after a prefix its questions must be of one length; batch them "
                "singly"
            )

    def ready(self, model: Model) -> None:
        """Raise `UserError` unless the model is watched, if a scorer needs that for what is dropped later."""
        if self.compress.prune_after is not None:
            self.compress.ready(model)

    def cache(self, model: Model, seeds: Sequence[int] | None = None) -> CompressedCache:
        """A copy of the cache, with a row for each seed (one row without). Raises `UserError` for another model."""
        self.check(model, ())
        self.ready(model)
        return self.kept.for_rows(row_seeds(self.compress.seed, seeds))

    def fewest_keys(self, model: Model, length: int) -> int:
        """The fewest keys that a layer may hold of a row whose prompt has `length` tokens, context included."""
        asked = length - len(self.tokens)
        later = [self.compress.fewest_keys(model, length)] if self.compress.prune_after is not None else []
        return min([kept + asked for kept in self.kept.lengths] + later)

    def for_blocks(self, model: Model) -> NoReturn:
        """Raises `UserError`: the keys of an autoregressive model mean nothing to one that sees in both directions."""
        raise UserError(
            f"a prefix holds keys of an autoregressive model, {model.name} sees in both directions; use Compress(...)"
        )

    def to_dict(self) -> dict[str, Any]:
        """The settings that it was made with, as JSON."""
        return {**self.compress.to_dict(), "prefix_tokens": len(self.tokens)}


@torch.no_grad()
def compress_prefix(model: Model, context: Prompts, compress: Compress) -> Prefix:
    """Read a context and keep what is left of it.

    context: one prompt, as `generate` takes it. Raises `UserError` before any pass, for a context that does not fit the
    model among other things; after it for a network that does not cache its keys.
    """
    check_autoregressive(model, "a block cache")
    encoded = encode_prompts(model, context)
    if len(encoded) != 1:
        raise UserError(f"a prefix holds one context, got {len(encoded)}; make one for each")
    tokens = encoded[0]
    if len(tokens) >= model.family.max_length:
        raise UserError(
            f"a prefix of {len(tokens)} tokens leaves no room for a question: {model.name} takes "
            f"{model.family.max_length} in all; shorten it"
        )
    compress.check(model, [len(tokens)])
    again = second_reading(model, tokens) if compress.how.rereads else []
    compress.ready(model)
    cache = empty_cache(compress, model, prompt_seeds(encoded, compress.seed))
    ids = torch.tensor([tokens + again], dtype=torch.long, device=model.device)
    canvas = Canvas(tokens=ids, real=torch.ones_like(ids, dtype=torch.bool), prompt_length=ids.shape[1])
    reads, everyone = Forward(model, canvas), torch.zeros_like(ids)
    for fed in ((0, len(tokens)), (len(tokens), len(tokens + again)))[: 2 if again else 1]:
        reads(Feed(ids, fed, (fed[1] - 1, fed[1]), everyone[:, slice(*fed)], cache))
    cache.check_filled()
    return Prefix(tokens=tuple(tokens), compress=compress, identity=identity_of(model), kept=cache)


def second_reading(model: Model, tokens: Sequence[int]) -> list[int]:
    """What is read after a context of these tokens for KVzip: a request to repeat it, and the context again.

    Raises `UserError` for a model without a tokenizer, and where twice is too long for it.
    """
    if model.tokenizer is None:
        raise UserError(f"{model.name} has no tokenizer to ask it to repeat a context with; use another scorer")
    request = model.tokenizer.encode(_REPEAT, add_special_tokens=False)
    if 2 * len(tokens) + len(request) > model.family.max_length:
        raise UserError(
            f"a context of {len(tokens)} tokens is read twice, and {model.name} takes {model.family.max_length} in "
            "all; shorten it"
        )
    return [*request, *tokens]


def compress_cache(
    model: Model,
    cache: Cache,
    compress: Compress,
    attention_mask: torch.Tensor | None = None,
    seeds: Sequence[int] | None = None,
) -> CompressedCache:
    """A cache with those keys of a filled one that stay, as after a first pass. The other is left as it is.

    attention_mask (batch, column): zero where a column is padding. seeds: one a row, for random choices. Raises
    `UserError` for caches whose keys can't be dropped one by one (quantised, static), for one that is empty or another
    model's, and for a scorer that needs what a cache does not keep.
    """
    _check_kind(cache)
    scorer = compress.how
    if scorer.needs_queries or compress.needs_received:
        who = f"scorer {scorer.name!r}" if scorer.needs_queries or scorer.needs_received else "a budget of sinks"
        kept_by_none = "queries" if scorer.needs_queries else "attention statistics"
        raise UserError(
            f"{who} needs {kept_by_none}, and a filled cache keeps none; give the first pass "
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
        dropping.is_initialized = True
        _fill(dropping.holding, plain, real)
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


def _fill(holding: GrowingHolding, plain: DynamicLayer, real: torch.Tensor) -> None:
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
    holding.begin(contents, whole=slots == width, passes=0)
    holding.settle(1.0)
