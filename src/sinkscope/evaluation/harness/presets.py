"""Published evaluation settings of diffusion models, by name: `preset=llada-gsm8k`.

A preset holds what its source states and nothing else; whatever else is given in `model_args` comes on top. One token a
step where no number of steps is stated.

Misleads: a score also depends on the prompt. LLaDA's instruct figures were made with OpenCompass and its prompts,
Dream's with a chat template and 0 examples (`--apply_chat_template`), MMaDA's with 5 (`--num_fewshot 5`); the harness's
task decides that, not the preset.

Left out, because the sources differ or are silent: Dream's base model (two versions of `eval/eval_dream_gen.sh` state
another top-p, neither states a confidence), MMaDA on anything but GSM8K, LLaDA 2 (another architecture).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from sinkscope.errors import UserError

EOS, EOT = 126081, 126348
"""LLaDA's ids of <|endoftext|> and <|eot_id|>, as its `generate.py` has them."""


@dataclass(frozen=True, kw_only=True)
class Preset:
    """Settings that somebody published for a model and a benchmark."""

    family: str
    settings: Mapping[str, Any]
    """As `model_args` name them."""
    source: str


# Appendix B.4 of arXiv 2502.09992 explains the two: `logits_eos_inf` never predicts the end of text, and
# `confidence_eos_eot_inf` commits the ends of text and turn last.
_NEVER_ENDS: Mapping[str, Any] = {"suppress": (EOS,)}
_ENDS_LAST: Mapping[str, Any] = {"defer": (EOS, EOT)}


def _llada(source: str, length: int, block: int, ends: Mapping[str, Any] | None = None) -> Preset:
    own = {"gen_length": length, "block_length": block, "steps": None, "schedule": "blocks", "confidence": "max-prob"}
    return Preset(family="llada", settings={**own, "temperature": 0.0, **(ends or {})}, source=source)


def _likelihood(guidance: float, draws: int) -> Preset:
    # ML-GSAI/LLaDA, eval_llada_lm_eval.sh: `cfg` and `mc_num` of every likelihood task.
    source = "ML-GSAI/LLaDA, eval_llada_lm_eval.sh, LLaDA-8B-Base"
    return Preset(family="llada", settings={"cfg_scale": guidance, "mc_num": draws}, source=source)


def _dream(length: int) -> Preset:
    # DreamLM/Dream, eval_instruct/eval.sh: max_new_tokens = diffusion_steps, temperature, top_p and alg of every task.
    settings = {
        "gen_length": length, "block_length": None, "steps": length, "schedule": "dream", "confidence": "entropy",
        "temperature": 0.1, "top_p": 0.9,
    }  # fmt: skip
    return Preset(
        family="dream", settings=settings, source="DreamLM/Dream, eval_instruct/eval.sh, Dream-v0-Instruct-7B"
    )


_PURE = "ML-GSAI/LLaDA, EVAL.md, LLaDA-8B-Instruct, pure diffusion"
_BLOCKS = "ML-GSAI/LLaDA, EVAL.md, LLaDA-8B-Instruct, block diffusion"
_LLADA_15 = "ML-GSAI/LLaDA, EVAL.md, LLaDA 1.5"
# ML-GSAI/LLaDA, eval_llada_lm_eval.sh: gen_length = steps = block_length = 1024 for all five.
_BASE = _llada("ML-GSAI/LLaDA, eval_llada_lm_eval.sh, LLaDA-8B-Base", 1024, 1024)
# arXiv 2510.15731, section 4.3: block 32, 256 tokens for GSM8K and 512 for HumanEval. It does not state the steps.
_SINKS = "arXiv 2510.15731, section 4.3 (Table 1)"

PRESETS: Mapping[str, Preset] = MappingProxyType(
    {
        # EVAL.md, table "pure diffusion sampling": gen_length, block_length, and which ends are held back.
        "llada-mmlu": _llada(_PURE, 3, 3),
        "llada-mmlu-pro": _llada(_PURE, 256, 256),
        "llada-arc": _llada(_PURE, 512, 512),
        "llada-gsm8k-pure": _llada(_PURE, 512, 512, _ENDS_LAST),
        "llada-math-pure": _llada(_PURE, 512, 512, _ENDS_LAST),
        "llada-gpqa": _llada(_PURE, 64, 64, _ENDS_LAST),
        "llada-humaneval": _llada(_PURE, 512, 512, _NEVER_ENDS),
        "llada-mbpp": _llada(_PURE, 256, 256, _ENDS_LAST),
        # EVAL.md, table "block diffusion sampling": 78.6 and 42.2 instead of 69.4 and 31.9.
        "llada-gsm8k": _llada(_BLOCKS, 256, 8),
        "llada-math": _llada(_BLOCKS, 512, 64),
        # EVAL.md, table "LLaDA 1.5".
        "llada-1.5-gsm8k": _llada(_LLADA_15, 256, 16, _ENDS_LAST),
        "llada-1.5-math": _llada(_LLADA_15, 1024, 128, _ENDS_LAST),
        "llada-1.5-gpqa": _llada(_LLADA_15, 256, 16),
        "llada-1.5-humaneval": _llada(_LLADA_15, 512, 32, _ENDS_LAST),
        "llada-1.5-mbpp": _llada(_LLADA_15, 512, 32, _ENDS_LAST),
        "llada-1.5-ifeval": _llada(_LLADA_15, 256, 16, _ENDS_LAST),
        **{f"llada-base-{task}": _BASE for task in ("bbh", "gsm8k", "math", "humaneval", "mbpp")},
        **{f"llada-base-{task}": _likelihood(0.5, 128) for task in ("gpqa", "arc", "hellaswag", "piqa")},
        "llada-base-truthfulqa": _likelihood(2.0, 128),
        "llada-base-winogrande": _likelihood(0.0, 128),
        **{f"llada-base-{task}": _likelihood(0.0, 1) for task in ("mmlu", "cmmlu", "ceval")},
        "llada-gsm8k-sinks": _llada(_SINKS, 256, 32),
        "llada-humaneval-sinks": _llada(_SINKS, 512, 32),
        "dream-mmlu": _dream(128),
        "dream-mmlu-pro": _dream(128),
        "dream-gsm8k": _dream(256),
        "dream-math": _dream(512),
        "dream-humaneval": _dream(768),
        "dream-mbpp": _dream(1024),
        "dream-ifeval": _dream(1280),
        # Gen-Verse/MMaDA, evaluation/lm/eval.sh: length = steps = 256, block_length 64.
        "mmada-gsm8k": Preset(
            family="mmada",
            settings={"gen_length": 256, "block_length": 64, "steps": 256},
            source="Gen-Verse/MMaDA, evaluation/lm/eval.sh, MMaDA-8B-MixCoT",
        ),
    }
)


def find_preset(name: str) -> Preset:
    """The preset called `name`. Raises `UserError` naming those that there are."""
    if name not in PRESETS:
        raise UserError(f"unknown preset {name!r}; choose one of {', '.join(sorted(PRESETS))}")
    return PRESETS[name]
