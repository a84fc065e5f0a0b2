"""What the families share that transformers already knows by `model_type`: configuration, positions, context.

Misleads: a checkpoint of a type that transformers has both as a masked and as a causal model (BERT, XLM) goes by the
name of its architecture, and is masked where that says nothing.
"""

from __future__ import annotations

import inspect

from torch import nn
from transformers import CONFIG_MAPPING, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, MODEL_FOR_MASKED_LM_MAPPING_NAMES

from sinkscope.errors import UserError
from sinkscope.families.checkpoint import Checkpoint
from sinkscope.families.guard import library_config

COMPUTED = (
    r"(^|\.)position_ids$",  # a buffer that old versions stored: 0, 1, 2, ...
    r"rotary_emb\.inv_freq$",  # follows from rope_theta
)
_UNLIMITED = 1 << 30
"""The context of a network that names none."""


def is_masked(checkpoint: Checkpoint) -> bool:
    """Whether transformers loads the checkpoint as a masked language model."""
    model_type = checkpoint.config.get("model_type")
    if model_type not in MODEL_FOR_MASKED_LM_MAPPING_NAMES:
        return False
    names = checkpoint.config.get("architectures") or []
    says_causal = any(name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values() for name in names)
    says_masked = any(name in MODEL_FOR_MASKED_LM_MAPPING_NAMES.values() for name in names)
    return says_masked or not (says_causal and model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def is_causal(checkpoint: Checkpoint) -> bool:
    """Whether transformers loads the checkpoint as a causal language model."""
    if checkpoint.gguf is not None:
        return True
    return checkpoint.config.get("model_type") in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and not is_masked(checkpoint)


def native_config(checkpoint: Checkpoint) -> PreTrainedConfig:
    """The library's configuration of the stored fields. Raises `UserError` for encoder-decoder models and wrong
    fields."""
    config = library_config(checkpoint, CONFIG_MAPPING[checkpoint.config["model_type"]])
    if config.is_encoder_decoder:
        raise UserError(
            f"{checkpoint.name}: model_type={config.model_type!r} with is_encoder_decoder=True has two stacks; "
            "sinkscope watches models of one stack"
        )
    return config


def position_offset(skeleton: PreTrainedModel) -> int | None:
    """What the network's own position ids start from, or None where its forward pass takes no position ids.

    RoBERTa-like networks count from pad + 1, which shows in a table of learned positions that has a padding row.
    """
    if "position_ids" not in inspect.signature(skeleton.forward).parameters:
        return None
    padding = _padding_row(skeleton)
    return 0 if padding is None else padding + 1


def _padding_row(skeleton: PreTrainedModel) -> int | None:
    for name, module in skeleton.named_modules():
        if name.rpartition(".")[2] == "position_embeddings" and isinstance(module, nn.Embedding):
            return module.padding_idx
    return None


def context_length(skeleton: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None) -> int:
    """The longest input in tokens: of the positions that the network holds, and of what the tokenizer says."""
    positions = getattr(skeleton.config.get_text_config(), "max_position_embeddings", None)
    lengths = [] if positions is None else [int(positions) - (position_offset(skeleton) or 0)]
    if tokenizer is not None:
        lengths.append(int(tokenizer.model_max_length))
    return min([_UNLIMITED, *(length for length in lengths if length > 0)])
