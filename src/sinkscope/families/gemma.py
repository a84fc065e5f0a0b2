"""DiffusionGemma: two stacks with one set of weights, and noise of random tokens in place of masks.

The encoder reads the prompt and each finished canvas causally and writes their keys; the decoder denoises a canvas that
sees those keys and itself in both directions. The stock class does both. `config.json` nests the text's fields in
`text_config`; how it is decoded stands in `generation_config.json`, by default as in transformers.

Pictures are not read here: prompts are text, and the vision tower is loaded and never called.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import DiffusionGemmaConfig, DiffusionGemmaForBlockDiffusion
from transformers.models.diffusion_gemma.generation_diffusion_gemma import DiffusionGemmaGenerationConfig

from sinkscope.errors import UserError, refusing
from sinkscope.families.base import Adapter, Blockwise, Body, Family, Opened, real_ids, register
from sinkscope.families.checkpoint import Checkpoint, read_json
from sinkscope.families.fields import whole
from sinkscope.families.guard import library_config
from sinkscope.families.stock import generation_ends
from sinkscope.families.tokenizers import read_stock_tokenizer

_FIELDS = {
    "gen_length": "max_new_tokens",
    "steps": "max_denoising_steps",
    **{name: name for name in ("t_max", "t_min", "stability_threshold", "confidence_threshold")},
}
"""A field of `Renoising` -> what transformers calls it."""
_LEAST_WINDOW = 2


def _body(checkpoint: Checkpoint) -> Body:
    config: Any = library_config(checkpoint, DiffusionGemmaConfig)
    config.canvas_length = whole(checkpoint.config, "canvas_length", DiffusionGemmaConfig().canvas_length)
    window = config.text_config.sliding_window
    if window < _LEAST_WINDOW:  # a cache holds one key less
        raise UserError(f"config.json: sliding_window={window}, wanted a whole number of at least {_LEAST_WINDOW}")
    return Body(network_class=DiffusionGemmaForBlockDiffusion, config=config, native_names=False)


def _stated(checkpoint: Checkpoint) -> Any:
    """How the checkpoint is to be decoded. Raises `UserError` where its file says nothing that transformers reads."""
    file = checkpoint.folder / "generation_config.json"
    told = read_json(file) if file.is_file() else {}
    kind: Any = DiffusionGemmaGenerationConfig
    # Raises AttributeError for a sampler of another name: the library does not guard it.
    with refusing(f"{file} is no configuration of how DiffusionGemma generates", "fetch the file again, or remove it"):
        stated = kind(**told)
        stated.update(**kind._get_default_generation_params(), defaults_only=True)
    return stated


def _family(opened: Opened) -> Family:
    config: Any = opened.skeleton.config
    text = config.get_text_config()
    stated = _stated(opened.checkpoint)
    default: Mapping[str, object] = {
        "entropy_bound": stated.sampler_config.entropy_bound,
        **{ours: getattr(stated, theirs) for ours, theirs in _FIELDS.items()},
    }
    named = text.eos_token_id if isinstance(text.eos_token_id, list) else [text.eos_token_id]
    return opened.family(
        "diffusion-gemma",
        mask=None,
        default_decoding=default,
        ends=[*real_ids(named), *generation_ends(opened.checkpoint)],
        renoises=True,
        blocks=Blockwise(length=config.canvas_length, from_prompt=True, causal_context=True),
        max_length=text.max_position_embeddings,
    )


register(
    Adapter(
        name="diffusion-gemma",
        summary="DiffusionGemma: canvases of random tokens, refined over a causal context",
        claims=lambda checkpoint: checkpoint.config.get("model_type") == "diffusion_gemma",
        body=_body,
        tokenizer=read_stock_tokenizer,
        family=_family,
    )
)
