"""Stock families: whatever transformers itself loads as a masked or as a causal language model.

Masked language models (BERT, ALBERT, RoBERTa, ModernBERT ...) fill the masks of a prompt instead of a canvas that
follows it, so their default decoding generates no new positions. Causal ones come from safetensors or from a GGUF file,
whose weights are taken out of their quantisation on loading, into float32 unless told otherwise; that costs four bytes
a parameter, many times the file.

Misleads: a masked model that was trained with 15 % masks is out of its depth on a text of masks only. What is watched
of a GGUF file is the de-quantised model, with the rounding of the file. A checkpoint of a type that transformers has
both as a masked and as a causal model (BERT, XLM) goes by the name of its architecture, and is masked where that says
nothing.
"""

from __future__ import annotations

import inspect
from typing import Any

from torch import nn
from transformers import (
    CONFIG_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_MASKED_LM_MAPPING,
    AutoConfig,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, MODEL_FOR_MASKED_LM_MAPPING_NAMES

from sinkscope.errors import UserError, refusing
from sinkscope.families.base import Adapter, Body, Family, Opened, real_ids, register
from sinkscope.families.checkpoint import Checkpoint, read_json
from sinkscope.families.fields import Allowed, refuse_surprises
from sinkscope.families.guard import library_config
from sinkscope.families.stored import read_stored
from sinkscope.families.tokenizers import read_stock_tokenizer
from sinkscope.families.unpacked import read_once

COMPUTED = (
    r"(^|\.)position_ids$",  # a buffer that old versions stored: 0, 1, 2, ...
    r"rotary_emb\.inv_freq$",  # follows from rope_theta
)
_UNLIMITED = 1 << 30
"""The context of a network that names none."""
_MASKED_ALLOWED: Allowed = {
    "is_decoder": (False, (False, None)),
    "add_cross_attention": (False, (False, None)),
    # transformers 5 dropped the relative kinds and would read such weights as absolute positions; "rotary" is ESM's.
    "position_embedding_type": ("absolute", ("absolute", "rotary", None)),
}

_OTHER_HEADS = (
    *COMPUTED,
    r"(^|\.)pooler(\.|_)",  # sentence vector of BERT and ALBERT, used by no masked prediction
    r"^cls\.seq_relationship\.",  # BERT's next-sentence head, a task of its pretraining
    r"^sop_classifier\.",  # ALBERT's sentence-order head
    r"^discriminator_predictions\.",  # ELECTRA's other half
    r"^lm_head\.decoder\.bias$",  # RoBERTa stores its one output bias under two names
    r"^cls\.predictions\.decoder\.bias$",  # so does BERT
    r"^predictions\.decoder\.bias$",  # so does ALBERT
)

_CAUSAL_ALLOWED: Allowed = {"is_causal": (True, (True, None)), "add_cross_attention": (False, (False, None))}

_BUFFERS = (
    *COMPUTED,
    r"\.attn(\.attention)?\.(bias|masked_bias)$",  # the causal triangle that GPT-2 and GPT-Neo used to store
)


def _is_masked(checkpoint: Checkpoint) -> bool:
    """Whether transformers loads the checkpoint as a masked language model."""
    model_type = checkpoint.config.get("model_type")
    if model_type not in MODEL_FOR_MASKED_LM_MAPPING_NAMES:
        return False
    names = checkpoint.config.get("architectures") or []
    says_causal = any(name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values() for name in names)
    says_masked = any(name in MODEL_FOR_MASKED_LM_MAPPING_NAMES.values() for name in names)
    return says_masked or not (says_causal and model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def _is_causal(checkpoint: Checkpoint) -> bool:
    """Whether transformers loads the checkpoint as a causal language model."""
    if checkpoint.gguf is not None:
        return True
    return checkpoint.config.get("model_type") in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and not _is_masked(checkpoint)


def _native_config(checkpoint: Checkpoint) -> PreTrainedConfig:
    """The library's configuration of the stored fields. Raises `UserError` for encoder-decoder models and wrong
    fields."""
    config = library_config(checkpoint, CONFIG_MAPPING[checkpoint.config["model_type"]])
    if config.is_encoder_decoder:
        raise UserError(
            f"{checkpoint.name}: model_type={config.model_type!r} with is_encoder_decoder=True has two stacks; "
            "sinkscope watches models of one stack"
        )
    return config


def _position_offset(skeleton: PreTrainedModel) -> int | None:
    """What the network's own position ids start from, or None where its forward pass takes no position ids.

    RoBERTa-like networks count from pad + 1, which shows in a table of learned positions that has a padding row.
    """
    if "position_ids" not in inspect.signature(skeleton.forward).parameters:
        return None
    for name, module in skeleton.named_modules():
        if name.rpartition(".")[2] == "position_embeddings" and isinstance(module, nn.Embedding):
            return 0 if module.padding_idx is None else module.padding_idx + 1
    return 0


def _context_length(opened: Opened) -> int:
    """The longest input in tokens: of the positions that the network holds, and of what the tokenizer says."""
    positions = getattr(opened.skeleton.config.get_text_config(), "max_position_embeddings", None)
    lengths = [] if positions is None else [int(positions) - (_position_offset(opened.skeleton) or 0)]
    if opened.tokenizer is not None:
        lengths.append(int(opened.tokenizer.model_max_length))
    return min([_UNLIMITED, *(length for length in lengths if length > 0)])


def _masked_body(checkpoint: Checkpoint) -> Body:
    refuse_surprises(checkpoint.config, _MASKED_ALLOWED, "a bidirectional encoder")
    config = _native_config(checkpoint)
    network_class: Any = MODEL_FOR_MASKED_LM_MAPPING[type(config)]
    return Body(network_class=network_class, config=config, native_names=False, surplus=_OTHER_HEADS)


def _masked_family(opened: Opened) -> Family:
    return opened.family(
        "masked-lm",
        mask=opened.mask,
        default_decoding={"gen_length": 0, "block_length": None, "steps": None},
        position_offset=_position_offset(opened.skeleton),
        max_length=_context_length(opened),
        has_cache=False,
    )


def _gguf_config(checkpoint: Checkpoint) -> PreTrainedConfig:
    tensors = read_stored(checkpoint)  # first: transformers reads a damaged file without a look at its length
    with refusing(f"{checkpoint.name}: transformers cannot read the metadata of this GGUF file"):
        config: PreTrainedConfig = read_once(checkpoint, "config", AutoConfig.from_pretrained)
    stored = len({name.split(".")[1] for name in tensors if name.startswith("blk.")})
    wanted = getattr(config.get_text_config(), "num_hidden_layers", stored)
    if wanted > stored:  # transformers looks for every weight of every layer, for minutes
        raise UserError(
            f"{checkpoint.name}: the metadata names {wanted} layers (or none, and {wanted} is the default), the file "
            f"holds {stored}; fetch it again"
        )
    return config


def _causal_body(checkpoint: Checkpoint) -> Body:
    refuse_surprises(checkpoint.config, _CAUSAL_ALLOWED, "an autoregressive model")
    config = _native_config(checkpoint) if checkpoint.gguf is None else _gguf_config(checkpoint)
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise UserError(f"{checkpoint.name}: model_type={config.model_type!r} is not a causal language model")
    network_class: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    return Body(network_class=network_class, config=config, native_names=False, surplus=_BUFFERS)


def generation_ends(checkpoint: Checkpoint) -> list[int]:
    """Ids that end a text by generation_config.json: some chat models name the token that ends a turn there alone."""
    file = checkpoint.folder / "generation_config.json"
    if checkpoint.gguf is not None or not file.is_file():
        return []
    stated, library = read_json(file), GenerationConfig
    with refusing(f"{file} is no configuration of how to generate", "fetch the file again, or remove it"):
        library.from_dict(stated)
    ends = stated.get("eos_token_id")
    listed = ends if type(ends) is list else [ends]
    if any(one is not None and type(one) is not int for one in listed):
        raise UserError(f"{file}: eos_token_id={ends!r}, wanted a token id or a list of them")
    return real_ids(listed)


def _causal_family(opened: Opened) -> Family:
    return opened.family(
        "causal-lm",
        mask=None,
        default_decoding={"max_new_tokens": 128, "temperature": 0.0},
        ends=generation_ends(opened.checkpoint),
        bidirectional=False,
        position_offset=_position_offset(opened.skeleton),
        max_length=_context_length(opened),
    )


register(
    Adapter(
        name="masked-lm",
        summary="masked language models that transformers knows: BERT, ALBERT, RoBERTa, ModernBERT ...",
        claims=_is_masked,
        body=_masked_body,
        tokenizer=read_stock_tokenizer,
        family=_masked_family,
        rank=1,
    )
)
register(
    Adapter(
        name="causal-lm",
        summary="autoregressive models that transformers knows: Llama, Qwen, GPT-2 ..., GGUF files too",
        claims=_is_causal,
        body=_causal_body,
        tokenizer=read_stock_tokenizer,
        family=_causal_family,
        rank=2,
    )
)
