"""LLaDA 2.0: a GLM4-MoE body with block-causal attention (reference: dllm's copy of the hub's file).

The stored names are the reference's; queries, keys and values stand in one weight, and experts one by one. The library
splits and stacks them on loading, by rules that are registered here under the checkpoint's own type.

The reference's decoding keeps no cache: it feeds all blocks up to the current one in every pass. Finished keys never
change, so `cache="blocks"` gives the same and is the default. Refused: LLaDA 2.1, which edits committed tokens, and
whatever GLM4-MoE does not compute; among it one expert a token, whose weight the reference does not normalise.

Misleads: mask and end of text are constants of the reference's code, taken where the vocabulary has as many tokens.
"""

from __future__ import annotations

from typing import Any

from transformers import Glm4MoeConfig, Glm4MoeForCausalLM
from transformers.conversion_mapping import (
    get_checkpoint_conversion_mapping,
    register_checkpoint_conversion_mapping,
)
from transformers.core_model_loading import Split, WeightConverter, WeightRenaming

from sinkscope.errors import UserError
from sinkscope.families.base import (
    IN_BLOCKS,
    Adapter,
    Blockwise,
    Body,
    Family,
    Opened,
    named_mask,
    register,
    without_causal_mask,
)
from sinkscope.families.checkpoint import Checkpoint
from sinkscope.families.fields import NATIVE, Allowed, real, refuse_surprises, token_id, unscaled_base, whole
from sinkscope.families.tokenizers import read_fast_tokenizer

_TYPE, _EDITING = "llada2_moe", "llada21_moe"
_MASK, _END = 156895, 156892
_ALLOWED: Allowed = {
    **{name: allowed for name, allowed in NATIVE.items() if name != "partial_rotary_factor"},
    "hidden_act": ("silu", ("silu",)),
    "use_bias": (False, (False, None)),
    "use_qkv_bias": (False, (True, False)),
    "use_qk_norm": (True, (True, False)),
    "use_rmsnorm": (True, (True, None)),
    "norm_topk_prob": (True, (True,)),
    "score_function": ("sigmoid", ("sigmoid", None)),
    "moe_router_enable_expert_bias": (True, (True,)),
    "use_sliding_window": (False, (False, None)),
    "tie_word_embeddings": (False, (True, False)),
}
_KNOWN = (
    *("vocab_size", "hidden_size", "intermediate_size", "moe_intermediate_size", "num_hidden_layers"),
    *("num_attention_heads", "num_key_value_heads", "head_dim", "max_position_embeddings", "rms_norm_eps"),
    *("num_experts", "num_experts_per_tok", "num_shared_experts", "n_group", "topk_group", "first_k_dense_replace"),
    *("routed_scaling_factor", "partial_rotary_factor", "rope_theta", "rope_parameters", "rope_scaling"),
    *("norm_head", "sliding_window", "max_window_layers", "router_dtype"),  # change nothing of a pass
)


def _register_conversion() -> None:
    """Tell the library how the stored weights become the stock network's, once a process."""
    rules_of: Any = get_checkpoint_conversion_mapping
    if rules_of(_TYPE) is not None:
        return
    renames = {
        r"model\.word_embeddings\.": "model.embed_tokens.",
        r"\.attention\.dense\.": ".self_attn.o_proj.",
        r"\.attention\.query_layernorm\.": ".self_attn.q_norm.",
        r"\.attention\.key_layernorm\.": ".self_attn.k_norm.",
        r"\.mlp\.gate\.expert_bias$": ".mlp.gate.e_score_correction_bias",
    }
    split = WeightConverter(
        "attention.query_key_value", [f"self_attn.{one}_proj" for one in ("q", "k", "v")], [Split(dim=0)]
    )
    renaming = [WeightRenaming(old, new) for old, new in renames.items()]
    register_checkpoint_conversion_mapping(_TYPE, [*renaming, split, *rules_of("glm4_moe")])


def _config(checkpoint: Checkpoint) -> Glm4MoeConfig:
    raw = checkpoint.config
    if raw.get("model_type") == _EDITING:
        raise UserError(
            f"{checkpoint.name}: LLaDA 2.1 edits tokens that were committed (token editing), which sinkscope's loop "
            "does not do; take a LLaDA 2.0 checkpoint"
        )
    body = "Glm4MoeForCausalLM"
    refuse_surprises(raw, _ALLOWED, body, _KNOWN)
    heads, width = whole(raw, "num_attention_heads"), whole(raw, "hidden_size")
    each = whole(raw, "num_experts_per_tok")
    if each == 1:
        raise UserError(f"config.json: num_experts_per_tok=1 is not what {body} computes: it needs 2 or more")
    config_class: Any = Glm4MoeConfig
    config: Glm4MoeConfig = config_class(
        vocab_size=whole(raw, "vocab_size"),
        hidden_size=width,
        intermediate_size=whole(raw, "intermediate_size"),
        moe_intermediate_size=whole(raw, "moe_intermediate_size"),
        num_hidden_layers=whole(raw, "num_hidden_layers"),
        num_attention_heads=heads,
        num_key_value_heads=whole(raw, "num_key_value_heads", heads),
        head_dim=whole(raw, "head_dim", width // heads),
        max_position_embeddings=whole(raw, "max_position_embeddings"),
        rms_norm_eps=real(raw, "rms_norm_eps", 1e-6),
        n_routed_experts=whole(raw, "num_experts"),
        n_shared_experts=whole(raw, "num_shared_experts"),
        num_experts_per_tok=each,
        n_group=whole(raw, "n_group", 1),
        topk_group=whole(raw, "topk_group", 1),
        first_k_dense_replace=raw.get("first_k_dense_replace", 0),
        routed_scaling_factor=real(raw, "routed_scaling_factor", 1.0),
        norm_topk_prob=True,
        use_qk_norm=raw.get("use_qk_norm", True),
        attention_bias=raw.get("use_qkv_bias", False),
        rope_parameters={
            "rope_type": "default",
            "rope_theta": unscaled_base(raw, body),
            "partial_rotary_factor": real(raw, "partial_rotary_factor", 1.0),
        },
        tie_word_embeddings=raw.get("tie_word_embeddings", False),
        bos_token_id=token_id(raw, "bos_token_id"),
        eos_token_id=token_id(raw, "eos_token_id"),
        pad_token_id=token_id(raw, "pad_token_id"),
        dtype=raw.get("torch_dtype", raw.get("dtype")),
    )
    setattr(config, "model_type", _TYPE)  # noqa: B010  of this one configuration, by which the library finds the rules below
    return config


def _body(checkpoint: Checkpoint) -> Body:
    config = without_causal_mask(_config(checkpoint))
    _register_conversion()
    surplus = (r"rotary_emb\.inv_freq$",)  # follows from rope_theta
    return Body(network_class=Glm4MoeForCausalLM, config=config, native_names=False, surplus=surplus)


def _family(opened: Opened) -> Family:
    own = opened.mask is None and opened.skeleton.config.vocab_size > _MASK
    return opened.family(
        "llada2",
        mask=_MASK if own else named_mask(opened),
        ends=[_END] if own or opened.mask == _MASK else [],
        blocks=Blockwise(length=opened.checkpoint.block_length or 32),
        default_decoding={**IN_BLOCKS, "schedule": "shares", "threshold": 0.95, "stop": "block"},
    )


register(
    Adapter(
        name="llada2",
        summary="LLaDA 2.0: a GLM4-MoE body, block-causal",
        claims=lambda checkpoint: checkpoint.config.get("model_type") in (_TYPE, _EDITING),
        body=_body,
        tokenizer=read_fast_tokenizer,
        family=_family,
        blockwise=True,
    )
)
