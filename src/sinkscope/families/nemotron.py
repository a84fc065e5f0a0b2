"""Nemotron-Labs-Diffusion: a Ministral3 body whose blocks are denoised over a causal context.

The prompt is read causally. A block is a seed, which is the token that the pass before it predicts, and masks; it sees
the context and itself in both directions. Finished, it is read once more causally, and those keys stay. So the keys of
its denoising passes are never kept, and `cache="blocks"` is the only way to decode it.

The reference's decoding is known from its hub file; its backbone's code is not at hand. Logits rest on the description
that it is Ministral3, and on nothing else. Not built: the budget of thinking tokens, the linear speculative mode.
"""

from __future__ import annotations

from transformers import Ministral3Config, Ministral3ForCausalLM

from sinkscope.families.base import (
    IN_BLOCKS,
    Adapter,
    Blockwise,
    Body,
    Family,
    Opened,
    register,
    stated_mask,
    without_causal_mask,
)
from sinkscope.families.checkpoint import Checkpoint
from sinkscope.families.fields import NATIVE, Allowed, refuse_surprises, refuse_windows, whole
from sinkscope.families.guard import field_names, library_config
from sinkscope.families.tokenizers import read_fast_tokenizer

_ALLOWED: Allowed = {
    **NATIVE,
    "hidden_act": ("silu", ("silu",)),
    "mlp_bias": (False, (False, None)),
    "attention_bias": (False, (False, None)),
    "sliding_window": (None, (None,)),
    # How it is trained: with any of them it is denoised alike.
    "dlm_paradigm": ("bidirectional", ("bidirectional", "block_diff", "autoregressive")),
}
_INERT = ("block_size", "ar_loss_weight", "dlm_loss_weight", "dp_varying_mask_ratio")
_RENAMES = {r"^encoder\.": "model.", r"^diffusion_head\.": "lm_head."}


def _body(checkpoint: Checkpoint) -> Body:
    name = Ministral3ForCausalLM.__name__
    refuse_surprises(checkpoint.config, _ALLOWED, name, {*field_names(Ministral3Config), *_INERT})
    refuse_windows(checkpoint.config, name)
    config = without_causal_mask(library_config(checkpoint, Ministral3Config))
    return Body(
        network_class=Ministral3ForCausalLM,
        config=config,
        renames=_RENAMES,
        surplus=(r"rotary_emb\.(original_)?inv_freq$",),  # follows from rope_parameters
    )


def _family(opened: Opened) -> Family:
    length = opened.checkpoint.block_length or whole(opened.checkpoint.config, "block_size", 32)
    return opened.family(
        "nemotron-diffusion",
        mask=stated_mask(opened),
        blocks=Blockwise(length=length, from_prompt=True, causal_context=True, seeded=True),
        default_decoding={**IN_BLOCKS, "threshold": 0.9, "stop": "at-once"},
    )


register(
    Adapter(
        name="nemotron-diffusion",
        summary="Nemotron-Labs-Diffusion: a Ministral3 body, blocks over a causal context",
        claims=lambda checkpoint: checkpoint.config.get("model_type") == "nemotron_labs_diffusion",
        body=_body,
        tokenizer=read_fast_tokenizer,
        family=_family,
        blockwise=True,
    )
)
