"""`model_args`: the model, how it decodes, what is masked in its attention and what is dropped from its cache.

    read_arguments({"pretrained": "twin-dlm", "mask": "top-k:5", "control": "random", "gen_length": 32})
    read_arguments({"pretrained": "twin-ar", "drop": "snapkv:window=32;kernel=7", "budget": "ratio:0.5"})

`mask`, `drop` and `budget` are specs (`sinkscope.discovery`). The harness splits `model_args` at commas, so semicolons
stand between a spec's parameters. `reference` names a file with texts, or packaged ones (`texts.reference_texts`). The
other names are fields of `Denoising`, `Decoding`, `MaskSinks` and `Compress`; `seed` is that of all draws: of sampling,
likelihoods, controls, resampled texts and random keys.

The harness guesses types before: `5` is a number, `-1` a float, `true` a boolean, `[0,1]` a list, the rest text.

Misleads: a revision of digits alone arrives as a number, without its leading zeros; put it in quotes. The harness hands
over a prompt in one piece, so no context is compressed before its question is read, and the first token of every answer
or continuation comes from the whole cache. An answer of one token, as of most multiple-choice tasks, owes nothing to
what was kept.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from types import MappingProxyType, NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from sinkscope.compression import Compress, Protect, SkipLayers, read_budget_spec, read_scorer
from sinkscope.decoding import Decoding, Denoising, Renoising
from sinkscope.errors import UserError
from sinkscope.evaluation.conditions import KeysCondition
from sinkscope.evaluation.texts import reference_texts
from sinkscope.families.model import parse_device, parse_dtype
from sinkscope.interventions import MaskSinks, read_keys


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """What was asked for, checked as far as that goes without a model.

    mask_token_id, attention_block_length: what a diffusion model's files do not say; `load_model`'s `mask_token_id` and
    `block_length`. mc_num: draws of a likelihood of a diffusion model. check_greedy: whether such a likelihood also
    says if greedy decoding would give the answer, for a pass a token. decoding: fields of `Denoising` or `Decoding`
    that were given, a preset's among them. condition: what is masked and dropped.
    """

    pretrained: str
    dtype: str | None = None
    device: str | None = None
    revision: str | None = None
    mask_token_id: int | None = None
    attention_block_length: int | None = None
    batch_size: int = 1
    preset: str | None = None
    mc_num: int = 128
    check_greedy: bool = False
    seed: int = 0
    decoding: Mapping[str, Any] = field(default_factory=dict)
    condition: KeysCondition = field(default_factory=KeysCondition)

    @property
    def told(self) -> dict[str, Any]:
        """Arguments of `load_model` and `describe_model` beside the name."""
        return {
            "revision": self.revision,
            "mask_token_id": self.mask_token_id,
            "block_length": self.attention_block_length,
        }

    @property
    def found_preset(self) -> Preset | None:
        """The preset, if one was named."""
        return None if self.preset is None else find_preset(self.preset)

    @property
    def cfg_scale(self) -> float:
        """Guidance of likelihoods, as of generation."""
        return float(self.decoding.get("cfg_scale", 0.0))


def _hints(kind: type, *without: str) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {one.name: hints[one.name] for one in fields(kind) if one.name not in without}


_OWN = _hints(Arguments, "decoding", "condition")
_DECODING = {**_hints(Decoding, "seed"), **_hints(Denoising, "seed"), **_hints(Renoising, "seed")}
_MASKING = {"mask": str, **_hints(MaskSinks, "keys", "seed", "reference"), "reference": str}
_DROPPING = {
    "drop": str, "budget": str | float, "skip_layers": tuple[int, ...], "protect_first": int, "protect_recent": int,
    "when": str, "prune_after": int,
}  # fmt: skip
_HINTS: Mapping[str, Any] = MappingProxyType({**_OWN, **_DECODING, **_MASKING, **_DROPPING})
ARGUMENTS = tuple(_HINTS)
"""All names there are."""
_RULE = "mask=excess:epsilon=3;scale=sum"
_FORMER = MappingProxyType(
    {"scorer": "drop=key-norm", "ratio": "budget=ratio:0.5", "kept_tokens": "budget=tokens:256"}
    | {"sampling_top_k": "top_k=50", **dict.fromkeys(("rule", "epsilon", "scale", "k", "value"), _RULE)}
)
"""Names of former versions, and what is written instead."""


def read_arguments(given: Mapping[str, Any]) -> Arguments:
    """Check and sort arguments as the harness hands them over. Raises `UserError`, in one line, for what can't be."""
    _check_names(given)
    own = {**given, **_harness_words(given)}
    preset = own.get("preset")
    asked = {**({} if preset in (None, "none") else find_preset(str(preset)).settings), **own}
    values = {name: read_value(name, value, _HINTS[name]) for name, value in asked.items()}
    if "top_k" in values and not values.get("temperature"):
        raise UserError(
            f"top_k={values['top_k']} limits sampling, so it needs a temperature too; sinks are masked by mask=top-k:5"
        )
    seed = values.get("seed", 0)
    arguments = Arguments(
        **_part(values, _OWN),
        decoding=_part(values, _DECODING),
        condition=KeysCondition(_masking(_part(values, _MASKING), seed), _compression(_part(values, _DROPPING), seed)),
    )
    for name in ("batch_size", "mc_num"):
        if vars(arguments)[name] < 1:
            raise UserError(f"model argument {name} must be at least 1, got {vars(arguments)[name]}")
    if arguments.dtype is not None:
        parse_dtype(arguments.dtype)
    parse_device(arguments.device)
    return arguments


def _part(values: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name in names}


def _check_names(given: Mapping[str, Any]) -> None:
    if "pretrained" not in given:
        raise UserError("model_args needs pretrained=MODEL: a folder, a packaged model, or a name on the hub")
    for name in given:
        if name not in _HINTS:
            instead = _FORMER.get(name) or next(iter(get_close_matches(name, ARGUMENTS, n=1)), None)
            hint = "" if instead is None else f"did you mean {instead}? "
            raise UserError(f"unknown model argument {name!r}; {hint}there are {', '.join(ARGUMENTS)}")


def _harness_words(given: Mapping[str, Any]) -> dict[str, Any]:
    """The harness passes the batch size on as text; "auto" as dtype is its word for "as stored"."""
    size = given.get("batch_size", 1)
    if str(size).startswith("auto"):
        raise UserError("batch_size auto is not for sinkscope, which does not probe memory; give a number")
    read = {"batch_size": int(size)} if isinstance(size, str) and size.isdecimal() else {}
    return {**read, "dtype": None} if given.get("dtype") == "auto" else read


def _masking(values: dict[str, Any], seed: int) -> MaskSinks | None:
    if "mask" in values:
        if "reference" in values:
            values["reference"] = reference_texts(values["reference"])
        return MaskSinks(read_keys(values.pop("mask")), **values, seed=seed)
    if values:
        name = next(iter(values))
        raise UserError(f"model argument {name} says how keys are masked, not which; add mask=top-k:5, or {_RULE}")
    return None


def _compression(values: dict[str, Any], seed: int) -> Compress | None:
    if "drop" not in values:
        if values:
            raise UserError(
                f"model argument {next(iter(values))} says how keys are dropped, not which; add drop=key-norm"
            )
        return None
    scorer, budget = read_scorer(values.pop("drop")), read_budget_spec(str(values.pop("budget", 0.5)))
    first, recent = values.pop("protect_first", 0), values.pop("protect_recent", 0)
    if first or recent:
        scorer = Protect(scorer, first=first, recent=recent)
    if "skip_layers" in values:
        budget = SkipLayers(budget, values.pop("skip_layers"))
    return Compress(scorer, budget, **values, seed=seed)


_KINDS: Mapping[Any, tuple[str, Any]] = MappingProxyType(
    {int: ("a whole number", int | float), float: ("a number", int | float), str: ("text", str | int)}
    | {bool: ("true or false", bool), tuple[int, ...]: ("whole numbers such as [0,1]", ())}
    | {tuple[str, ...]: ("words such as ['prompt','committed']", ()), NoneType: ("none", ())}
)
"""How a message calls a type, and what the harness makes of its values; of lists none, whose values are looked at."""


def read_value(name: str, value: Any, hint: Any) -> Any:
    """`value`, as the harness made it of a piece of text, as a type of `_KINDS` or a union of such.

    Raises `UserError` that names the argument, what came and what was wanted.
    """
    kinds = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    if NoneType in kinds and str(value).lower() == "none":
        return None
    for kind in kinds:
        with suppress(TypeError):
            return _as(kind, value)
    raise UserError(f"model argument {name}={value!r}: wanted {' or '.join(_KINDS[kind][0] for kind in kinds)}")


def _as(kind: Any, value: Any) -> Any:
    """Raises `TypeError` for a value of another kind."""
    if get_origin(kind) is tuple:
        return tuple(_as(get_args(kind)[0], one) for one in (value if isinstance(value, list | tuple) else [value]))
    if isinstance(value, bool) != (kind is bool) or not isinstance(value, _KINDS[kind][1]):
        raise TypeError
    if kind is int and value % 1 != 0:
        raise TypeError
    return kind(value)


EOS, EOT = 126081, 126348
"""LLaDA's ids of <|endoftext|> and <|eot_id|>, as its `generate.py` has them."""


@dataclass(frozen=True, kw_only=True)
class Preset:
    """Settings that somebody published for a model and a benchmark, as `model_args` name them.

    A preset holds what its source states and nothing else; whatever is given beside it comes on top. One token a step
    where no number of steps is stated. Misleads: a score also depends on the prompt, which is the task's; see
    docs/reference/lm-eval.md. Where sources differ or are silent there is no preset: Dream's base model (two versions
    of `eval/eval_dream_gen.sh` state another top-p, neither a confidence), MMaDA on anything but GSM8K, LLaDA 2.
    """

    family: str
    settings: Mapping[str, Any]
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
    return Preset(family="llada", settings={"cfg_scale": guidance, "mc_num": draws}, source=_LLADA_BASE)


def _dream(length: int) -> Preset:
    # DreamLM/Dream, eval_instruct/eval.sh: max_new_tokens = diffusion_steps, temperature, top_p and alg of every task.
    own = {"gen_length": length, "block_length": None, "steps": length, "schedule": "dream", "confidence": "entropy"}
    source = "DreamLM/Dream, eval_instruct/eval.sh, Dream-v0-Instruct-7B"
    return Preset(family="dream", settings={**own, "temperature": 0.1, "top_p": 0.9}, source=source)


_PURE = "ML-GSAI/LLaDA, EVAL.md, LLaDA-8B-Instruct, pure diffusion"
_BLOCKS = "ML-GSAI/LLaDA, EVAL.md, LLaDA-8B-Instruct, block diffusion"
_LLADA_15 = "ML-GSAI/LLaDA, EVAL.md, LLaDA 1.5"
_LLADA_BASE = "ML-GSAI/LLaDA, eval_llada_lm_eval.sh, LLaDA-8B-Base"
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
        # eval_llada_lm_eval.sh: gen_length = steps = block_length = 1024 for all five.
        **{
            f"llada-base-{task}": _llada(_LLADA_BASE, 1024, 1024)
            for task in ("bbh", "gsm8k", "math", "humaneval", "mbpp")
        },
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
