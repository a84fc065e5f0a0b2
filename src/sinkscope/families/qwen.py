"""Qwen bodies without the causal mask: Dream and DiffuCoder, A2D (dllm's Tiny-A2D), SDAR and Fast-dLLM v2.

Dream, arXiv 2508.15487: row i-1 of the logits predicts position i; the network itself does not shift them, decoding
does. A2D turns autoregressive Qwen2 and Qwen3 models into masked diffusion models: the network is the stock one, weight
for weight; only the causal mask is gone and the tokenizer has gained a mask token, whose id stands nowhere else. dllm's
masked-diffusion sampler does not shift the logits for these (`right_shift_logits=False`).

A2D trained as block diffusion (BD3LM, arXiv 2503.09573), SDAR (arXiv 2510.06303) and Fast-dLLM v2 (arXiv 2509.26328)
attend by blocks: see `Blockwise`. Their samplers are settings of the one loop. SDAR's mask token and block length
stand in its configuration, those of the others nowhere: Fast-dLLM v2 has constants in its code, which are taken where
the vocabulary is its own.

Misleads: rows of padding are masked whole in Dream's reference, so their outputs mean nothing and are never compared.
Whether an A2D checkpoint was trained as masked or as block diffusion stands nowhere: `block_length` says the second.
Names with bd3lm are refused without it; others can't be told. SDAR's reference overwrites known tokens where a step is
to commit more than there are masks left; here it commits what is left.
"""

from __future__ import annotations

from transformers import (
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from sinkscope.errors import UserError
from sinkscope.families.base import (
    BLOCKS,
    IN_BLOCKS,
    Adapter,
    Blockwise,
    Body,
    Family,
    Opened,
    named_mask,
    register,
    stated_mask,
    without_causal_mask,
)
from sinkscope.families.checkpoint import Checkpoint
from sinkscope.families.fields import (
    NATIVE,
    Allowed,
    real,
    refuse_surprises,
    refuse_windows,
    token_id,
    unscaled_base,
    whole,
)
from sinkscope.families.guard import field_names, library_config
from sinkscope.families.tokenizers import read_qwen_tokenizer

_QWEN: Allowed = {**NATIVE, "hidden_act": ("silu", ("silu",)), "use_sliding_window": (False, (False, None))}
_DREAM: Allowed = {
    **_QWEN,
    "attention_bias": (True, (True,)),
    "mlp_bias": (False, (False,)),
    "tie_word_embeddings": (False, (True, False)),
}
_A2D: Allowed = {**_QWEN, "loophole_enabled": (False, (False,))}
"""A sliding window is refused because the reference replaces every mask by the padding mask, and so never had one."""

_KNOWN = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "head_dim", "max_position_embeddings", "rms_norm_eps"),
    *("rope_theta", "rope_parameters", "rope_scaling"),
    *("sliding_window", "max_window_layers", "layer_types"),  # windows are off: see use_sliding_window
)

_SDAR_INERT = (
    *("block_size", "fuse_cross_entropy", "debug", "ep_size", "micro_forward", "skip_checkpoint", "use_deepep"),
    *("router_aux_loss_coef", "output_router_logits"),
)
_FAST_MASK, _FAST_END = 151665, 151645
"""Constants of Fast-dLLM v2's code; its configuration names neither."""

_COMPUTED = (r"rotary_emb\.inv_freq$",)  # follows from rope_theta


def _dream_config(checkpoint: Checkpoint) -> Qwen2Config:
    raw = checkpoint.config
    refuse_surprises(raw, _DREAM, "Qwen2ForCausalLM", _KNOWN)
    refuse_windows(raw, "Qwen2ForCausalLM")
    width, heads = whole(raw, "hidden_size"), whole(raw, "num_attention_heads")
    key_heads = whole(raw, "num_key_value_heads", heads)
    if width % heads or heads % key_heads:
        raise UserError(
            f"config.json: hidden_size={width}, num_attention_heads={heads}, num_key_value_heads={key_heads} "
            "do not divide one another"
        )
    if whole(raw, "head_dim", width // heads) != width // heads:
        raise UserError(f"config.json: head_dim={raw['head_dim']} is not hidden_size / num_attention_heads")
    return Qwen2Config(
        vocab_size=whole(raw, "vocab_size"),
        hidden_size=width,
        intermediate_size=whole(raw, "intermediate_size"),
        num_hidden_layers=whole(raw, "num_hidden_layers"),
        num_attention_heads=heads,
        num_key_value_heads=key_heads,
        max_position_embeddings=whole(raw, "max_position_embeddings"),
        rms_norm_eps=real(raw, "rms_norm_eps", 1e-6),
        rope_parameters={"rope_type": "default", "rope_theta": unscaled_base(raw, "Qwen2ForCausalLM")},
        tie_word_embeddings=raw.get("tie_word_embeddings", False),
        use_sliding_window=False,
        bos_token_id=token_id(raw, "bos_token_id"),
        eos_token_id=token_id(raw, "eos_token_id"),
        pad_token_id=token_id(raw, "pad_token_id"),
        dtype=raw.get("torch_dtype", raw.get("dtype")),
    )


def _dream_body(checkpoint: Checkpoint) -> Body:
    config = without_causal_mask(_dream_config(checkpoint))
    return Body(network_class=Qwen2ForCausalLM, config=config, surplus=_COMPUTED)


def _dream_family(opened: Opened) -> Family:
    return opened.family(
        "dream",
        mask=stated_mask(opened),
        logit_shift=True,
        default_decoding={
            "gen_length": 128,
            "block_length": None,
            "steps": 128,
            "schedule": "dream",
            "confidence": "entropy",
            "temperature": 0.0,
        },
    )


def _qwen_body(
    checkpoint: Checkpoint,
    network_class: type[PreTrainedModel],
    config_class: type[PreTrainedConfig],
    allowed: Allowed = _A2D,
    inert: tuple[str, ...] = (),
) -> Body:
    """The stock network, weight for weight. inert: fields of the family's own that change nothing of a pass."""
    refuse_surprises(checkpoint.config, allowed, network_class.__name__, {*field_names(config_class), *inert})
    refuse_windows(checkpoint.config, network_class.__name__)
    config = without_causal_mask(library_config(checkpoint, config_class))
    # Experts are stored one by one, and stacked by the library's own rules.
    return Body(
        network_class=network_class, config=config, surplus=_COMPUTED, native_names=config_class is not Qwen3MoeConfig
    )


def _a2d_body(
    checkpoint: Checkpoint, network_class: type[PreTrainedModel], config_class: type[PreTrainedConfig]
) -> Body:
    stated = [checkpoint.config.get("_name_or_path"), checkpoint.config.get("architectures")]
    names = [checkpoint.name, str(checkpoint.folder.resolve()), *map(str, stated)]
    if checkpoint.block_length is None and any("bd3lm" in one.rstrip("/").rpartition("/")[2].lower() for one in names):
        raise UserError(
            f"{checkpoint.name}: trained by block diffusion (bd3lm), and its files do not say in blocks of how many "
            "tokens; name it: load_model(..., block_length=32), --attention-block-length 32"
        )
    return _qwen_body(checkpoint, network_class, config_class)


def _a2d_family(name: str, opened: Opened) -> Family:
    length = opened.checkpoint.block_length
    if length is None:
        return opened.family(name, mask=named_mask(opened), default_decoding={**BLOCKS, "schedule": "linear"})
    return opened.family(
        name,
        mask=named_mask(opened),
        blocks=Blockwise(length=length, from_prompt=True),
        default_decoding={**IN_BLOCKS, "steps": 128, "schedule": "linear", "stop": "block"},
    )


def _sdar_family(opened: Opened) -> Family:
    stored = whole(opened.checkpoint.config, "block_size", 4)  # its configuration class's default
    return opened.family(
        "sdar",
        mask=stated_mask(opened),
        blocks=Blockwise(length=opened.checkpoint.block_length or stored),
        default_decoding={**IN_BLOCKS, "schedule": "shares", "threshold": 0.85, "stop": "block"},
    )


def _fast_dllm_family(opened: Opened) -> Family:
    mask = opened.mask
    if mask is None and opened.skeleton.config.vocab_size > _FAST_MASK:
        mask = _FAST_MASK
    if mask is None:
        raise UserError(
            f"{opened.checkpoint.name}: no mask token: Fast-dLLM v2's ({_FAST_MASK}) is not in its vocabulary; "
            "name it: load_model(..., mask_token_id=), --mask-token-id"
        )
    return opened.family(
        "fast-dllm-v2",
        mask=mask,
        ends=[_FAST_END] if mask == _FAST_MASK else [],
        logit_shift=True,
        # The reference's passes have blocks of 32 whatever `bd_size` says, which is of the training.
        blocks=Blockwise(length=opened.checkpoint.block_length or 32, seeded=True),
        default_decoding={
            **IN_BLOCKS,
            "schedule": "shares",
            "threshold": 0.9,
            "sub_block_length": 8,
            "stop": "at-once",
        },
    )


def _a2d(name: str, network_class: type[PreTrainedModel], config_class: type[PreTrainedConfig]) -> Adapter:
    return Adapter(
        name=name,
        summary=f"A2D: {network_class.__name__} without the causal mask, mask token from the tokenizer",
        claims=lambda checkpoint: checkpoint.config.get("model_type") == name,
        body=lambda checkpoint: _a2d_body(checkpoint, network_class, config_class),
        tokenizer=read_qwen_tokenizer,
        family=lambda opened: _a2d_family(name, opened),
        blockwise=True,
    )


def _sdar(name: str, network_class: type[PreTrainedModel], config_class: type[PreTrainedConfig]) -> Adapter:
    return Adapter(
        name=name,
        summary=f"SDAR: {network_class.__name__}, block-causal",
        claims=lambda checkpoint: checkpoint.config.get("model_type") == name,
        body=lambda checkpoint: _qwen_body(checkpoint, network_class, config_class, _QWEN, _SDAR_INERT),
        tokenizer=read_qwen_tokenizer,
        family=_sdar_family,
        blockwise=True,
    )


register(
    Adapter(
        name="dream",
        summary="Dream 7B, DiffuCoder: a Qwen2 body without the causal mask, logits shifted by one",
        claims=lambda checkpoint: checkpoint.config.get("model_type") == "Dream",
        body=_dream_body,
        tokenizer=read_qwen_tokenizer,
        family=_dream_family,
    )
)
register(_a2d("a2d-qwen2", Qwen2ForCausalLM, Qwen2Config))
register(_a2d("a2d-qwen3", Qwen3ForCausalLM, Qwen3Config))
register(_sdar("sdar", Qwen3ForCausalLM, Qwen3Config))
register(_sdar("sdar_moe", Qwen3MoeForCausalLM, Qwen3MoeConfig))
register(
    Adapter(
        name="fast-dllm-v2",
        summary="Fast-dLLM v2: a Qwen2 body, block-causal, logits shifted by one",
        claims=lambda checkpoint: checkpoint.config.get("model_type") == "Fast_dLLM_Qwen",
        body=lambda one: _qwen_body(one, Qwen2ForCausalLM, Qwen2Config, _QWEN, ("bd_size", "conplemenrary_mask")),
        tokenizer=read_qwen_tokenizer,
        family=_fast_dllm_family,
        blockwise=True,
    )
)
