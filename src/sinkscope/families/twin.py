"""Twins: stock Llama folders whose config.json says what they were trained for.

    "sinkscope": {"objective": "masked-diffusion", "logit_shift": false, "trained_length": 128}

A twin that learnt chains (`language.chains`) also says which, as `chains`.

The same body is autoregressive with `next-token`, and a masked diffusion model without the causal mask with
`masked-diffusion`; `logit_shift` is Dream's, for a diffusion model made from an autoregressive one. `joint` learnt
both: it is opened as a diffusion model.

Any of them is opened under another mask by `block_length`: block-causal attention, counted from the text's first token;
1 is causal, and where the twin learnt the next token it then writes as an autoregressive model does.

Misleads: transformers itself knows nothing of the section, and opens a diffusion twin as a causal model. But for
`joint`, another mask than its own is one that the twin never saw.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from transformers import LlamaConfig, LlamaForCausalLM

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
from sinkscope.families.fields import NATIVE, Allowed, refuse_surprises, refuse_windows, token_id, whole
from sinkscope.families.guard import field_names, library_config
from sinkscope.families.stock import COMPUTED
from sinkscope.families.tokenizers import read_stock_tokenizer

SECTION, CHAINS = "sinkscope", "chains"
NEXT_TOKEN, MASKED_DIFFUSION, JOINT = "next-token", "masked-diffusion", "joint"
_QUESTION_END = "=>"

_ALLOWED: Mapping[str, Allowed] = {
    NEXT_TOKEN: {**NATIVE, "is_causal": (True, (True, None))}, MASKED_DIFFUSION: NATIVE, JOINT: NATIVE,
}  # fmt: skip
_DENOISED: Mapping[str, object] = {"gen_length": 32, "block_length": 4, "steps": None, "confidence": "max-prob"}
_DECODING: Mapping[str, Mapping[str, object]] = {
    NEXT_TOKEN: {"max_new_tokens": 32, "temperature": 0.0},
    MASKED_DIFFUSION: _DENOISED,
    JOINT: _DENOISED,
}


@dataclass(frozen=True, kw_only=True)
class _Section:
    """What a twin's config.json says beside the stock fields."""

    objective: str
    logit_shift: bool
    trained_length: int
    """Of the longest documents of its training, in tokens."""
    chains: dict[str, Any] | None = None
    """Settings of `language.chains.Chains`, where it learnt chains."""


def _read_section(checkpoint: Checkpoint) -> _Section:
    stored, wanted = checkpoint.config[SECTION], [field.name for field in fields(_Section) if field.name != CHAINS]
    where = f"{checkpoint.name}: config.json: {SECTION}"
    if type(stored) is not dict or sorted(stored.keys() - {CHAINS}) != sorted(wanted):
        found = f"the fields {', '.join(sorted(stored)) or 'none'}" if type(stored) is dict else repr(stored)
        raise UserError(f"{where} needs the fields {', '.join(wanted)} and no other, found {found}")
    objective, shift = stored["objective"], stored["logit_shift"]
    if objective not in [*_DECODING]:
        raise UserError(f"{where}.objective={objective!r}, wanted one of {', '.join(_DECODING)}")
    if type(shift) is not bool:
        raise UserError(f"{where}.logit_shift={shift!r}, wanted true or false")
    if shift and objective != MASKED_DIFFUSION:
        raise UserError(f"{where}.logit_shift=True goes with {MASKED_DIFFUSION} only; {objective} needs false")
    chains = stored.get(CHAINS)
    if chains is not None and type(chains) is not dict:
        raise UserError(f"{where}.{CHAINS}={chains!r}, wanted settings by name")
    length = whole(stored, "trained_length")
    return _Section(objective=objective, logit_shift=shift, trained_length=length, chains=chains)


def _body(checkpoint: Checkpoint) -> Body:
    section = _read_section(checkpoint)
    body = f"a twin with {section.objective}"
    refuse_surprises(checkpoint.config, _ALLOWED[section.objective], body, {SECTION, *field_names(LlamaConfig)})
    refuse_windows(checkpoint.config, body)
    config = library_config(checkpoint, LlamaConfig)
    if section.trained_length > config.max_position_embeddings:
        raise UserError(
            f"{checkpoint.name}: config.json: {SECTION}.trained_length={section.trained_length} is more than "
            f"max_position_embeddings={config.max_position_embeddings}"
        )
    if section.objective != NEXT_TOKEN or checkpoint.block_length is not None:
        config = without_causal_mask(config)
    return Body(network_class=LlamaForCausalLM, config=config, surplus=COMPUTED)


def _mask(opened: Opened) -> int:
    checkpoint, mask = opened.checkpoint, named_mask(opened)
    stated = token_id(checkpoint.config, "mask_token_id")
    if stated not in (None, mask):
        raise UserError(f"{checkpoint.name}: config.json: mask_token_id={stated}, but the tokenizer's mask is {mask}")
    return mask


def _family(opened: Opened) -> Family:
    section, tokenizer = _read_section(opened.checkpoint), opened.tokenizer
    length, told = opened.checkpoint.block_length, dict(_DECODING[section.objective])
    bidirectional, blocks = section.objective != NEXT_TOKEN or length is not None, None
    if length is not None:
        # Whose row i - 1 was taught token i by its own objective, can say what a block begins with.
        seeded = section.objective != MASKED_DIFFUSION or section.logit_shift
        blocks, told = Blockwise(length=length, seeded=seeded), {**IN_BLOCKS, "gen_length": 32}
    return opened.family(
        "twin",
        mask=_mask(opened) if bidirectional else None,
        default_decoding=told,
        blocks=blocks,
        bidirectional=bidirectional,
        logit_shift=section.logit_shift,
        trained_length=section.trained_length,
        closed_vocabulary=tokenizer is not None and tokenizer.is_fast and tokenizer.unk_token_id is not None,
        question_end=_QUESTION_END if tokenizer is not None and _QUESTION_END in tokenizer.get_vocab() else None,
    )


register(
    Adapter(
        name="twin",
        summary="sinkscope's twins: LlamaForCausalLM, causal or without the causal mask as config.json says",
        claims=lambda checkpoint: checkpoint.config.get("model_type") == "llama" and SECTION in checkpoint.config,
        body=_body,
        tokenizer=read_stock_tokenizer,
        family=_family,
        blockwise=True,
    )
)
