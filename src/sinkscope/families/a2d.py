"""A2D: autoregressive Qwen2 and Qwen3 models turned into masked diffusion models (dllm's Tiny-A2D).

The network is the stock one, weight for weight; only the causal mask is gone and the tokenizer has gained a mask
token, whose id stands nowhere else. dllm's masked-diffusion sampler does not shift the logits for these
(`right_shift_logits=False`).

Misleads: block-diffusion checkpoints (bd3lm) were trained with a block-wise mask that this family does not apply, and
their files say nothing of it. Those that name themselves so, or a block length, are refused; others can't be told.
"""

from __future__ import annotations

from transformers import (
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from sinkscope.errors import UserError
from sinkscope.families.base import (
    BLOCKS,
    Adapter,
    Body,
    Family,
    eos_ids,
    mask_id,
    pad_id,
    register,
    special_ids,
    without_causal_mask,
)
from sinkscope.families.checkpoint import Checkpoint
from sinkscope.families.fields import NATIVE, Allowed, refuse_surprises, refuse_windows
from sinkscope.families.guard import field_names, library_config
from sinkscope.families.tokenizers import read_qwen_tokenizer

_ALLOWED: Allowed = {
    **NATIVE,
    "hidden_act": ("silu", ("silu",)),
    "use_sliding_window": (False, (False, None)),
    "loophole_enabled": (False, (False,)),
}
"""A sliding window is refused because the reference replaces every mask by the padding mask, and so never had one."""

_COMPUTED = (r"rotary_emb\.inv_freq$",)  # follows from rope_theta


def _body(checkpoint: Checkpoint, network_class: type[PreTrainedModel], config_class: type[PreTrainedConfig]) -> Body:
    _refuse_block_diffusion(checkpoint)
    refuse_surprises(checkpoint.config, _ALLOWED, network_class.__name__, field_names(config_class))
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


def _family(
    name: str, checkpoint: Checkpoint, skeleton: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None
) -> Family:
    config = skeleton.config
    mask = mask_id(checkpoint, config.vocab_size, tokenizer)
    return Family(
        name=name,
        bidirectional=True,
        logit_shift=False,
        mask_token_id=mask,
        special_ids=special_ids(checkpoint.config, tokenizer, mask),
        eos_token_ids=eos_ids(checkpoint.config, tokenizer),
        pad_token_id=pad_id(checkpoint.config, config, tokenizer),
        position_offset=0,
        max_length=config.max_position_embeddings,
        default_decoding=BLOCKS,
    )


def _register(name: str, network_class: type[PreTrainedModel], config_class: type[PreTrainedConfig]) -> None:
    register(
        Adapter(
            name=name,
            summary=f"A2D: {network_class.__name__} without the causal mask, mask token from the tokenizer",
            claims=lambda checkpoint: checkpoint.config.get("model_type") == name,
            body=lambda checkpoint: _body(checkpoint, network_class, config_class),
            tokenizer=read_qwen_tokenizer,
            family=lambda checkpoint, skeleton, tokenizer: _family(name, checkpoint, skeleton, tokenizer),
        )
    )


_register("a2d-qwen2", Qwen2ForCausalLM, Qwen2Config)
_register("a2d-qwen3", Qwen3ForCausalLM, Qwen3Config)
