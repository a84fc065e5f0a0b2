"""Dream and DiffuCoder: a Qwen2 body without the causal mask, with logits shifted by one position.

arXiv 2508.15487. Row i-1 of the logits predicts position i; the network itself does not shift them, decoding does.
Misleads: rows of padding are masked whole in the reference, so their outputs mean nothing and are never compared.
"""

from __future__ import annotations

from transformers import PreTrainedModel, PreTrainedTokenizerBase, Qwen2Config, Qwen2ForCausalLM

from sinkscope.errors import UserError
from sinkscope.families.base import (
    Adapter,
    Body,
    Family,
    eos_ids,
    pad_id,
    register,
    special_ids,
    vocabulary_holds,
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
from sinkscope.families.tokenizers import read_qwen_tokenizer

_ALLOWED: Allowed = {
    **NATIVE,
    "hidden_act": ("silu", ("silu",)),
    "use_sliding_window": (False, (False, None)),
    "attention_bias": (True, (True,)),
    "mlp_bias": (False, (False,)),
    "tie_word_embeddings": (False, (True, False)),
}

_KNOWN = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "head_dim", "max_position_embeddings", "rms_norm_eps"),
    *("rope_theta", "rope_parameters", "rope_scaling"),
    *("sliding_window", "max_window_layers", "layer_types"),  # windows are off: see use_sliding_window
)

_COMPUTED = (r"rotary_emb\.inv_freq$",)  # follows from rope_theta


def _config(checkpoint: Checkpoint) -> Qwen2Config:
    raw = checkpoint.config
    refuse_surprises(raw, _ALLOWED, "Qwen2ForCausalLM", _KNOWN)
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


def _body(checkpoint: Checkpoint) -> Body:
    return Body(network_class=Qwen2ForCausalLM, config=without_causal_mask(_config(checkpoint)), surplus=_COMPUTED)


def _family(checkpoint: Checkpoint, skeleton: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None) -> Family:
    config = skeleton.config
    stored = token_id(checkpoint.config, "mask_token_id")
    mask = vocabulary_holds(stored, config.vocab_size, "mask_token_id", checkpoint.name)
    if mask is None:
        raise UserError(f"{checkpoint.name}: config.json has no mask_token_id, and Dream cannot be denoised without it")
    return Family(
        name="dream",
        bidirectional=True,
        logit_shift=True,
        mask_token_id=mask,
        special_ids=special_ids(checkpoint.config, tokenizer, mask),
        eos_token_ids=eos_ids(checkpoint.config, tokenizer),
        pad_token_id=pad_id(checkpoint.config, config, tokenizer),
        position_offset=0,
        max_length=config.max_position_embeddings,
        default_decoding={
            "gen_length": 128,
            "block_length": None,
            "steps": 128,
            "schedule": "dream",
            "confidence": "entropy",
            "temperature": 0.0,
        },
    )


register(
    Adapter(
        name="dream",
        summary="Dream 7B, DiffuCoder: a Qwen2 body without the causal mask, logits shifted by one",
        claims=lambda checkpoint: checkpoint.config.get("model_type") == "Dream",
        body=_body,
        tokenizer=read_qwen_tokenizer,
        family=_family,
    )
)
