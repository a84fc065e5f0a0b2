"""Masked language models: whatever transformers loads as one (BERT, ALBERT, RoBERTa, ModernBERT ...).

They fill the masks of a prompt instead of a canvas that follows it, so their default decoding generates no new
positions. Misleads: a model that was trained with 15 % masks is out of its depth on a text of masks only.
"""

from __future__ import annotations

from typing import Any

from transformers import MODEL_FOR_MASKED_LM_MAPPING, PreTrainedModel, PreTrainedTokenizerBase

from sinkscope.families.base import Adapter, Body, Family, eos_ids, pad_id, register, special_ids, vocabulary_holds
from sinkscope.families.checkpoint import Checkpoint
from sinkscope.families.fields import Allowed, refuse_surprises
from sinkscope.families.native import COMPUTED, context_length, is_masked, native_config, position_offset
from sinkscope.families.tokenizers import read_stock_tokenizer

_ALLOWED: Allowed = {
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


def _body(checkpoint: Checkpoint) -> Body:
    refuse_surprises(checkpoint.config, _ALLOWED, "a bidirectional encoder")
    config = native_config(checkpoint)
    network_class: Any = MODEL_FOR_MASKED_LM_MAPPING[type(config)]
    return Body(network_class=network_class, config=config, native_names=False, surplus=_OTHER_HEADS)


def _family(checkpoint: Checkpoint, skeleton: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None) -> Family:
    config = skeleton.config
    named = None if tokenizer is None else tokenizer.mask_token_id
    stored = checkpoint.config.get("mask_token_id") if named is None else named
    mask = vocabulary_holds(stored, config.vocab_size, "mask_token_id", checkpoint.name)
    return Family(
        name="masked-lm",
        bidirectional=True,
        logit_shift=False,
        mask_token_id=mask,
        special_ids=special_ids(checkpoint.config, tokenizer, mask),
        eos_token_ids=eos_ids(checkpoint.config, tokenizer),
        pad_token_id=pad_id(checkpoint.config, config, tokenizer),
        position_offset=position_offset(skeleton),
        max_length=context_length(skeleton, tokenizer),
        has_cache=False,
        default_decoding={"gen_length": 0, "block_length": None, "steps": None},
    )


register(
    Adapter(
        name="masked-lm",
        summary="masked language models that transformers knows: BERT, ALBERT, RoBERTa, ModernBERT ...",
        claims=is_masked,
        body=_body,
        tokenizer=read_stock_tokenizer,
        family=_family,
        rank=1,
    )
)
