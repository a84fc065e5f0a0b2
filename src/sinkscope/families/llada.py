"""LLaDA (8B, 1.5, iLLaDA) and MMaDA: a Llama body without the causal mask.

The reference rotates queries and keys in float32 whatever the dtype of the weights (`rope_full_precision`). Stock
bfloat16 rotation gives other logits, so such a checkpoint asks for `float32_rotation` (see `model`).

The reference, arXiv 2502.09992, allows more than its published checkpoints use (ALiBi, other norms and activations,
biases, other block types); all of that is refused by the field's name. Misleads: MMaDA's vocabulary holds image
tokens after the text tokens, and nothing keeps a text generation from committing one.
"""

from __future__ import annotations

from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase

from sinkscope.errors import UserError
from sinkscope.families.base import BLOCKS, Adapter, Body, Family, Opened, register, stated_mask, without_causal_mask
from sinkscope.families.checkpoint import Checkpoint, RawConfig
from sinkscope.families.fields import NATIVE, Allowed, real, refuse_surprises, token_id, unscaled_base, whole
from sinkscope.families.tokenizers import read_fast_tokenizer

_ALLOWED: Allowed = {
    **NATIVE,
    "num_experts": (None, (None, 0)),
    "block_type": ("sequential", ("llama",)),
    "block_group_size": (1, (1,)),
    "activation_type": ("swiglu", ("silu",)),
    "layer_norm_type": ("default", ("rms",)),
    "layer_norm_with_affine": (True, (True,)),
    "bias_for_layer_norm": (None, (None, False)),
    "attention_layer_norm": (False, (False, None)),
    "input_emb_norm": (False, (False, None)),
    "include_bias": (False, (False, None)),
    "include_qkv_bias": (False, (False, None)),
    "rope": (False, (True,)),
    "rope_full_precision": (True, (True, False)),
    "alibi": (False, (False, None)),
    "clip_qkv": (None, (None,)),
    "scale_logits": (False, (False, None)),
    "multi_query_attention": (None, (None, True, False)),
    "weight_tying": (True, (True, False)),
}
"""What is left out has the default of the reference's configuration class, which is GPT-2's more than LLaDA's."""

_KNOWN = (
    *("d_model", "n_heads", "n_kv_heads", "n_layers", "mlp_hidden_size", "mlp_ratio", "vocab_size", "embedding_size"),
    *("max_sequence_length", "rms_norm_eps", "rope_theta", "rope_parameters", "rope_scaling"),
    # Of ALiBi, of a norm and of a cache that are not used, and of training; the head is tied by `weight_tying` alone.
    *("alibi_bias_max", "attention_layer_norm_with_affine", "precision", "tie_word_embeddings"),
    # MMaDA's image tokenizer, and where its vocabulary came from.
    *("codebook_size", "num_vq_tokens", "llm_vocab_size", "new_vocab_size", "num_new_special_tokens"),
    *("llm_model_path", "w_clip_vit"),
)

_OUTER = {"wte": "model.embed_tokens", "ln_f": "model.norm", "ff_out": "lm_head"}
_INNER = {
    "q_proj": "self_attn.q_proj",
    "k_proj": "self_attn.k_proj",
    "v_proj": "self_attn.v_proj",
    "attn_out": "self_attn.o_proj",
    "ff_proj": "mlp.gate_proj",
    "up_proj": "mlp.up_proj",
    "ff_out": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ff_norm": "post_attention_layernorm",
}
_RENAMES = {rf"^model\.transformer\.{old}\.": f"{new}." for old, new in _OUTER.items()} | {
    rf"^model\.transformer\.blocks\.(\d+)\.{old}\.": rf"model.layers.\1.{new}." for old, new in _INNER.items()
}

_MASK, _END_OF_TURN = 126336, 126348
"""Ids of LLaDA's own vocabulary: the end of turn is known by the mask where there is no tokenizer to ask."""


def _key_heads(config: RawConfig, heads: int) -> int:
    """Key/value heads: `n_kv_heads`, else one or all by `multi_query_attention`; refuses a contradiction of the two."""
    multi_query = config.get("multi_query_attention")
    given = config.get("n_kv_heads")
    if given is None:
        return 1 if multi_query else heads
    wanted = {None: given, True: 1, False: heads}[multi_query]
    if given != wanted:
        raise UserError(
            f"config.json: n_kv_heads={given!r}, but multi_query_attention={multi_query!r} means {wanted} of them"
        )
    return whole(config, "n_kv_heads")


def _config(checkpoint: Checkpoint) -> LlamaConfig:
    raw = checkpoint.config
    refuse_surprises(raw, _ALLOWED, "LlamaForCausalLM", _KNOWN)
    width, heads = whole(raw, "d_model"), whole(raw, "n_heads")
    key_heads = _key_heads(raw, heads)
    if width % heads or heads % key_heads:
        raise UserError(
            f"config.json: d_model={width}, n_heads={heads}, n_kv_heads={key_heads} do not divide one another"
        )
    return LlamaConfig(
        # embedding_size may be padded beyond the vocabulary; the reference's logits have all its rows.
        vocab_size=whole(raw, "embedding_size", whole(raw, "vocab_size")),
        hidden_size=width,
        intermediate_size=whole(raw, "mlp_hidden_size", whole(raw, "mlp_ratio", 4) * width),
        num_hidden_layers=whole(raw, "n_layers"),
        num_attention_heads=heads,
        num_key_value_heads=key_heads,
        max_position_embeddings=whole(raw, "max_sequence_length"),
        rms_norm_eps=real(raw, "rms_norm_eps", 1e-5),
        rope_parameters={"rope_type": "default", "rope_theta": unscaled_base(raw, "LlamaForCausalLM")},
        tie_word_embeddings=raw.get("weight_tying", True),
        bos_token_id=token_id(raw, "bos_token_id"),
        eos_token_id=token_id(raw, "eos_token_id"),
        pad_token_id=token_id(raw, "pad_token_id"),
        dtype=raw.get("torch_dtype", raw.get("dtype")),
    )


def _body(checkpoint: Checkpoint) -> Body:
    return Body(
        network_class=LlamaForCausalLM,
        config=without_causal_mask(_config(checkpoint)),
        renames=_RENAMES,
        float32_rotation=checkpoint.config.get("rope_full_precision", True),
    )


def _end_of_turn(mask: int, size: int, tokenizer: PreTrainedTokenizerBase | None) -> int | None:
    if tokenizer is not None:
        return tokenizer.get_vocab().get("<|eot_id|>")
    return _END_OF_TURN if mask == _MASK and size > _END_OF_TURN else None


def _family(name: str, opened: Opened) -> Family:
    mask = stated_mask(opened)
    turn = _end_of_turn(mask, opened.skeleton.config.vocab_size, opened.tokenizer)
    return opened.family(name, mask=mask, default_decoding=BLOCKS, ends=[] if turn is None else [turn])


def _register(name: str, summary: str) -> None:
    register(
        Adapter(
            name=name,
            summary=summary,
            claims=lambda checkpoint: checkpoint.config.get("model_type") == name,
            body=_body,
            tokenizer=read_fast_tokenizer,
            family=lambda opened: _family(name, opened),
        )
    )


_register("llada", "LLaDA 8B, LLaDA 1.5, iLLaDA: a Llama body without the causal mask")
_register("mmada", "MMaDA: LLaDA's body with image tokens in the vocabulary")
