"""Qwen bodies without the causal mask: Dream and DiffuCoder, and A2D (dllm's Tiny-A2D).

Dream, arXiv 2508.15487: row i-1 of the logits predicts position i; the network itself does not shift them, decoding
does. A2D turns autoregressive Qwen2 and Qwen3 models into masked diffusion models: the network is the stock one, weight
for weight; only the causal mask is gone and the tokenizer has gained a mask token, whose id stands nowhere else. dllm's
masked-diffusion sampler does not shift the logits for these (`right_shift_logits=False`).

Misleads: rows of padding are masked whole in Dream's reference, so their outputs mean nothing and are never compared.
Block-diffusion checkpoints (bd3lm) were trained with a block-wise mask that A2D does not apply, and their files say
nothing of it. Those that name themselves so, or a block length, are refused; others can't be told.
"""

from __future__ import annotations

from transformers import PreTrainedConfig, PreTrainedModel, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

from sinkscope.errors import UserError
from sinkscope.families.base import (
    BLOCKS,
    Adapter,
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


def _a2d_body(
    checkpoint: Checkpoint, network_class: type[PreTrainedModel], config_class: type[PreTrainedConfig]
) -> Body:
    _refuse_block_diffusion(checkpoint)
    refuse_surprises(checkpoint.config, _A2D, network_class.__name__, field_names(config_class))
    refuse_windows(checkpoint.config, network_class.__name__)
    config = without_causal_mask(library_config(checkpoint, config_class))
    return Body(network_class=network_class, config=config, surplus=_COMPUTED)


def _refuse_block_diffusion(checkpoint: Checkpoint) -> None:
    stated = [checkpoint.config.get("_name_or_path"), checkpoint.config.get("architectures")]
    names = [checkpoint.name, str(checkpoint.folder.resolve()), *map(str, stated)]
    if any("bd3lm" in name.rstrip("/").rpartition("/")[2].lower() for name in names):
        raise UserError(
            f"{checkpoint.name}: trained by block diffusion (bd3lm), whose block-wise mask sinkscope does not apply "
            "yet: its attention would be another model's; use the masked-diffusion (mdlm) checkpoint"
        )


def _a2d(name: str, network_class: type[PreTrainedModel], config_class: type[PreTrainedConfig]) -> Adapter:
    return Adapter(
        name=name,
        summary=f"A2D: {network_class.__name__} without the causal mask, mask token from the tokenizer",
        claims=lambda checkpoint: checkpoint.config.get("model_type") == name,
        body=lambda checkpoint: _a2d_body(checkpoint, network_class, config_class),
        tokenizer=read_qwen_tokenizer,
        family=lambda opened: opened.family(name, mask=named_mask(opened), default_decoding=BLOCKS),
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
