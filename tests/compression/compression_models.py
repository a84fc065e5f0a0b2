"""Tiny autoregressive models of several kinds, and the oracle: the full cache, with dropped keys at -inf in eager
attention."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    DynamicCache,
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GraniteSWAConfig,
    GraniteSWAForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)
from transformers.masking_utils import sdpa_mask

from sinkscope.compression import CompressedCache
from sinkscope.families import Model, load_model

VOCABULARY = 101
LAYERS = 3
_SIZES: dict[str, Any] = {
    "hidden_size": 48, "intermediate_size": 71, "num_hidden_layers": LAYERS, "num_attention_heads": 6,
    "num_key_value_heads": 2, "vocab_size": VOCABULARY, "initializer_range": 0.3, "max_position_embeddings": 128,
    "eos_token_id": 17, "bos_token_id": 1, "pad_token_id": 0,
}  # fmt: skip
WINDOW = 7
KINDS: dict[str, Callable[[], PreTrainedModel]] = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**_SIZES)),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**_SIZES, sliding_window=WINDOW)),
    "qwen2": lambda: Qwen2ForCausalLM(
        Qwen2Config(
            **_SIZES,
            use_sliding_window=True,
            sliding_window=WINDOW,
            layer_types=["full_attention", "sliding_attention", "full_attention"],
        )
    ),
    "gemma3": lambda: Gemma3ForCausalLM(
        Gemma3TextConfig(
            **_SIZES,
            head_dim=8,
            sliding_window=WINDOW,
            layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        )
    ),
    "gemma2": lambda: Gemma2ForCausalLM(
        Gemma2Config(
            **_SIZES,
            head_dim=8,
            attn_logit_softcapping=2.0,
            sliding_window=WINDOW,
            layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        )
    ),
    "granite_swa": lambda: _with_sinks(
        GraniteSWAForCausalLM(
            GraniteSWAConfig(
                **_SIZES,
                attention_multiplier=0.3,
                sliding_window=WINDOW,
                layer_types=["sliding_attention", "full_attention", "sliding_attention"],
            )
        )
    ),
}
"""Llama: full attention. Mistral: sliding in all layers. The others: in some. Gemma 2 has soft caps, Granite learned
sinks. All with grouped queries."""


def _with_sinks(network: PreTrainedModel) -> PreTrainedModel:
    for name, weight in network.named_parameters():
        if name.endswith("sinks"):
            torch.nn.init.normal_(weight, std=2.0)
    return network


def save_kind(kind: str, folder: Path, seed: int = 7) -> Path:
    """Write a checkpoint with weights of its own."""
    torch.manual_seed(seed)
    KINDS[kind]().save_pretrained(folder / kind)
    return folder / kind


def load_kind(kind: str, folder: Path, dtype: str = "float64", **settings: Any) -> Model:
    """Load a tiny model of one kind."""
    return load_model(save_kind(kind, folder), dtype=dtype, device="cpu", **settings)


def some_tokens(*shape: int) -> torch.Tensor:
    """Random token ids that end nothing."""
    return torch.randint(18, VOCABULARY, shape)


def left_padded(lengths: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and their 2-D mask (batch, column), rows of these lengths padded on the left."""
    width = max(lengths)
    mask = torch.stack([(torch.arange(width) >= width - length).long() for length in lengths])
    return some_tokens(len(lengths), width) * mask, mask


def positions_of(mask: torch.Tensor) -> torch.Tensor:
    """Positions counted from each row's first real token, (batch, column)."""
    return (mask.cumsum(-1) - 1).clamp(min=0)


@torch.no_grad()
def feed(
    network: PreTrainedModel, cache: Any, tokens: torch.Tensor, mask: torch.Tensor, start: int, stop: int
) -> torch.Tensor:
    """Logits (batch, query, token) of the columns start:stop on top of a cache."""
    logits: torch.Tensor = network(
        input_ids=tokens[:, start:stop],
        attention_mask=mask[:, :stop],
        position_ids=positions_of(mask)[:, start:stop],
        cache=cache,
        use_cache=True,
    ).logits
    return logits


def dropped_from(cache: CompressedCache, width: int) -> list[torch.Tensor]:
    """For each layer the columns whose key is gone, (batch, kv_head, column) boolean."""
    gone = []
    for layer in cache.dropping:
        contents = layer.holding.contents
        assert contents is not None
        assert layer.keys is not None
        kv_heads = layer.keys.shape[1]
        columns = contents.columns.expand(-1, kv_heads, -1).long()
        there = torch.zeros(columns.shape[0], kv_heads, width + 1, dtype=torch.bool)
        there.scatter_(-1, torch.where(columns < 0, width, columns), True)
        gone.append(~there[..., :width])
    return gone


_gone: list[torch.Tensor] = []


def _masked_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float = 1.0,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Plain softmax attention; keys named in `_gone` (by layer, key head and column) are at -inf."""
    heads, queries, keys = query.shape[1], query.shape[2], key.shape[2]
    groups = heads // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = query @ key.transpose(-1, -2) * scaling
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if attention_mask is None:
        attention_mask = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)[None, None]
    scores = scores.masked_fill(~attention_mask[..., -keys:], -torch.inf)
    if _gone:
        layer = module.layer_idx
        assert isinstance(layer, int)
        # A sliding cache has forgotten the first columns.
        scores = scores.masked_fill(_gone[layer][..., -keys:].repeat_interleave(groups, 1).unsqueeze(2), -torch.inf)
    if s_aux is not None:
        scores = torch.cat([scores, s_aux.view(1, -1, 1, 1).expand_as(scores[..., :1])], dim=-1)
    probabilities = scores.softmax(-1).nan_to_num(0)[..., :keys]
    return (probabilities @ value).transpose(1, 2).contiguous(), None


AttentionInterface.register("masked-oracle", _masked_attention)
AttentionMaskInterface.register("masked-oracle", sdpa_mask)


@contextmanager
def masking(gone: Sequence[torch.Tensor]) -> Iterator[None]:
    """Hide these columns, (batch, kv_head, column) a layer with all that are there, from the queries of a pass."""
    _gone[:] = gone
    try:
        yield
    finally:
        _gone.clear()


class FullCacheOracle:
    """The same text over a full cache; what a compressed cache has dropped before a pass is hidden in it."""

    def __init__(self, model: Model) -> None:
        self.network = model.network
        self.cache = DynamicCache(config=model.network.config)

    def feed(
        self, tokens: torch.Tensor, mask: torch.Tensor, start: int, stop: int, gone: Sequence[torch.Tensor]
    ) -> torch.Tensor:
        """Logits (batch, query, token) of the columns start:stop. gone: columns that are hidden, of those before."""
        self.network.set_attn_implementation("masked-oracle")
        try:
            with masking([torch.nn.functional.pad(one, (0, stop - one.shape[-1])) for one in gone]):
                return feed(self.network, self.cache, tokens, mask, start, stop)
        finally:
            self.network.set_attn_implementation("sinkscope")
