"""Drop keys that the model does not need, and measure by what it can be told which those are.

    half = Compress("key-norm", 0.5)
    generate(model, prompts, settings, compression=half)                          # also `decode` and `record`
    model.network.generate(**inputs, cache=half.cache(model))                     # transformers' own loop

    prefix = compress_prefix(model, context, half)                                # before any question is read
    generate(model, questions, settings, compression=prefix)                      # each gets a copy
    save_prefix(prefix, "book.safetensors"); load_prefix("book.safetensors", model)

How the parts fit, for whoever builds on them:

- `scorers/`: a `Scorer` is a frozen dataclass with `importance(cached: CachedLayer) -> (batch, kv_head, key)` float32,
  the lowest dropped first. It states what it needs (`needs_queries`, `needs_received`, `needs_rotation`, and how many
  queries it `remembers`); whoever can't give that must refuse before any work. By name: `SCORERS`, `make_scorer`. A new
  scorer is one class. `Protect`, `ChunkKV`, `BlockWise` and `Rerotated` go around one.
- `budgets.py`: a `Budget` says how many of a row's n real keys stay in a layer, `kept(n, layer)`; `as_budget` takes
  ratios and numbers of tokens. Where key heads differ, `counts(cached, importance)` says it of each.
- `contents.py`: `Contents`, the tensors of a layer; `LayerRules`, what is dropped from them and when; and
  `choose_kept(importance, real, counts)` -> the slots that stay, (batch, kv_head, slot). Pure.
- `layers.py`: `CompressedLayer`, one layer of a cache, growing or of a block. Layers and heads hold different keys;
  `attention.evicting` gives every layer its own mask.
- `cache.py`: `CompressedCache`, a transformers `Cache` of an autoregressive model, with `cache.nbytes` and
  `cache.lengths`; `CompressedBlocks`, the same in the block caches of a diffusion model, which drop keys of the context
  after each block's full pass. There scorers see `causal=False`, the block's queries, keys on both sides of the block.
- `settings.py`: `Compress`, the settings. `prefix.py`, `saved.py`: a context read once, kept and saved.

Decoding loops know a `Compression` by `decoding.protocols`, which `Compress` and `Prefix` implement; the denoising loop
asks it for what it does to blocks.

Positions and real slots are (batch, kv_head, key), because heads differ once keys were dropped twice. Received
attention is (batch, head, key), summed over all queries so far. Of equally important keys the left one stays.
"""

from sinkscope.compression.budgets import (
    AdaKV,
    Budget,
    KeepSinks,
    PerLayerBudget,
    PyramidKV,
    Ratio,
    SkipLayers,
    Tokens,
    as_budget,
    read_budget_spec,
)
from sinkscope.compression.cache import CompressedCache
from sinkscope.compression.contents import EMPTY, choose_kept
from sinkscope.compression.prefix import Prefix, compress_cache, compress_prefix
from sinkscope.compression.saved import load_prefix, save_prefix
from sinkscope.compression.scorers import (
    SCORERS,
    TOVA,
    BlockWise,
    CachedLayer,
    ChunkKV,
    ExpectedAttention,
    HighKeyNorm,
    KeyDiff,
    KeyNorm,
    KVzip,
    LagKV,
    MaskQueries,
    Press,
    Protect,
    Random,
    ReceivedAttention,
    Rerotated,
    Rotation,
    Scorer,
    Sinks,
    SnapKV,
    SparseDLLM,
    Streaming,
    ValueNorm,
    make_scorer,
    read_scorer,
)
from sinkscope.compression.settings import WHEN, Compress, read_compress

__all__ = [
    "EMPTY",
    "SCORERS",
    "TOVA",
    "WHEN",
    "AdaKV",
    "BlockWise",
    "Budget",
    "CachedLayer",
    "ChunkKV",
    "Compress",
    "CompressedCache",
    "ExpectedAttention",
    "HighKeyNorm",
    "KVzip",
    "KeepSinks",
    "KeyDiff",
    "KeyNorm",
    "LagKV",
    "MaskQueries",
    "PerLayerBudget",
    "Prefix",
    "Press",
    "Protect",
    "PyramidKV",
    "Random",
    "Ratio",
    "ReceivedAttention",
    "Rerotated",
    "Rotation",
    "Scorer",
    "Sinks",
    "SkipLayers",
    "SnapKV",
    "SparseDLLM",
    "Streaming",
    "Tokens",
    "ValueNorm",
    "as_budget",
    "choose_kept",
    "compress_cache",
    "compress_prefix",
    "load_prefix",
    "make_scorer",
    "read_budget_spec",
    "read_compress",
    "read_scorer",
    "save_prefix",
]
