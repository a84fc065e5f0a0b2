"""Autoregressive language models: whatever transformers loads as one, from safetensors or from a GGUF file.

GGUF weights are taken out of their quantisation on loading, into float32 unless told otherwise; that costs four bytes a
parameter, many times the file. Misleads: what is watched is then the de-quantised model, with the rounding of the file.
"""

from __future__ import annotations

from typing import Any

from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from sinkscope.errors import UserError, refusing
from sinkscope.families.base import Adapter, Body, Family, eos_ids, pad_id, register, special_ids
from sinkscope.families.checkpoint import Checkpoint, RawConfig, read_json
from sinkscope.families.fields import Allowed, refuse_surprises
from sinkscope.families.native import COMPUTED, context_length, is_causal, native_config, position_offset
from sinkscope.families.stored import read_stored
from sinkscope.families.tokenizers import read_stock_tokenizer

_ALLOWED: Allowed = {"is_causal": (True, (True, None)), "add_cross_attention": (False, (False, None))}

_BUFFERS = (
    *COMPUTED,
    r"\.attn(\.attention)?\.(bias|masked_bias)$",  # the causal triangle that GPT-2 and GPT-Neo used to store
)


def _gguf_config(checkpoint: Checkpoint) -> PreTrainedConfig:
    tensors = read_stored(checkpoint)  # first: transformers reads a damaged file without a look at its length
    with refusing(f"{checkpoint.name}: transformers cannot read the metadata of this GGUF file"):
        config: PreTrainedConfig = AutoConfig.from_pretrained(checkpoint.folder, gguf_file=checkpoint.gguf)
    stored = len({name.split(".")[1] for name in tensors if name.startswith("blk.")})
    wanted = getattr(config.get_text_config(), "num_hidden_layers", stored)
    if wanted > stored:  # transformers looks for every weight of every layer, for minutes
        raise UserError(
            f"{checkpoint.name}: the metadata names {wanted} layers (or none, and {wanted} is the default), the file "
            f"holds {stored}; fetch it again"
        )
    return config


def _body(checkpoint: Checkpoint) -> Body:
    refuse_surprises(checkpoint.config, _ALLOWED, "an autoregressive model")
    config = native_config(checkpoint) if checkpoint.gguf is None else _gguf_config(checkpoint)
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise UserError(f"{checkpoint.name}: model_type={config.model_type!r} is not a causal language model")
    network_class: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    return Body(network_class=network_class, config=config, native_names=False, surplus=_BUFFERS)


def _generation(checkpoint: Checkpoint) -> RawConfig:
    """generation_config.json: some chat models name the token that ends a turn there alone."""
    file = checkpoint.folder / "generation_config.json"
    if checkpoint.gguf is not None or not file.is_file():
        return {}
    stated, library = read_json(file), GenerationConfig
    with refusing(f"{file} is no configuration of how to generate", "fetch the file again, or remove it"):
        library.from_dict(stated)
    ends = stated.get("eos_token_id")
    if any(one is not None and type(one) is not int for one in (ends if type(ends) is list else [ends])):
        raise UserError(f"{file}: eos_token_id={ends!r}, wanted a token id or a list of them")
    return stated


def _family(checkpoint: Checkpoint, skeleton: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None) -> Family:
    config = skeleton.config
    stated = checkpoint.config if checkpoint.gguf is None else config.to_dict()
    ends = tuple(dict.fromkeys([*eos_ids(stated, tokenizer), *eos_ids(_generation(checkpoint), None)]))
    return Family(
        name="causal-lm",
        bidirectional=False,
        logit_shift=False,
        mask_token_id=None,
        special_ids=special_ids(stated, tokenizer, *ends),
        eos_token_ids=ends,
        pad_token_id=pad_id(stated, config, tokenizer),
        position_offset=position_offset(skeleton),
        max_length=context_length(skeleton, tokenizer),
        default_decoding={"max_new_tokens": 128, "temperature": 0.0},
    )


register(
    Adapter(
        name="causal-lm",
        summary="autoregressive models that transformers knows: Llama, Qwen, GPT-2 ..., GGUF files too",
        claims=is_causal,
        body=_body,
        tokenizer=read_stock_tokenizer,
        family=_family,
        rank=2,
    )
)
