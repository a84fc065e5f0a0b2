"""`model_args`: everything that can be said about the model, how it decodes, what is cut from its attention or dropped
from its cache.

    read_arguments({"pretrained": "twin-dlm", "top_k": 5, "control": "random", "gen_length": 32})

The names are those of the settings they go into: `Denoising`, `Decoding`, `MaskSinks` and the sink rules. One name has
two uses there: `top_k` is the number of keys to mask, `sampling_top_k` that of tokens to sample from. `seed` is that of
all draws: of sampling, of likelihoods, of controls and of random keys. A new field of those classes is an argument
without further ado.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any, get_type_hints

from sinkscope.compression import Compress
from sinkscope.decoding import Decoding, Denoising
from sinkscope.errors import UserError
from sinkscope.evaluation.harness.dropping import DROPPING, read_compression
from sinkscope.evaluation.harness.presets import Preset, find_preset
from sinkscope.evaluation.harness.values import read_value
from sinkscope.families.model import parse_device, parse_dtype
from sinkscope.interventions import MaskSinks
from sinkscope.sinks import RULES, SinkRule, make_rule

SAMPLING_TOP_K = "sampling_top_k"


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """What was asked for, checked as far as that goes without a model."""

    pretrained: str
    dtype: str | None = None
    device: str | None = None
    revision: str | None = None
    batch_size: int = 1
    preset: str | None = None
    mc_num: int = 128
    """Draws of a likelihood of a diffusion model."""
    check_greedy: bool = False
    """Whether a diffusion model's likelihood also says if greedy decoding would give the answer; a pass a token."""
    seed: int = 0
    decoding: Mapping[str, Any]
    """Fields of `Denoising` or `Decoding` that were given, a preset's among them."""
    masking: MaskSinks | None = None
    compression: Compress | None = None

    @property
    def found_preset(self) -> Preset | None:
        """The preset, if one was named."""
        return None if self.preset is None else find_preset(self.preset)

    @property
    def cfg_scale(self) -> float:
        """Guidance of likelihoods, as of generation."""
        return float(self.decoding.get("cfg_scale", 0.0))


def _hints(kind: type, without: Iterable[str]) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind) if field.name not in without}


def _decoding_hints() -> dict[str, Any]:
    found = {**_hints(Decoding, ("seed",)), **_hints(Denoising, ("seed",))}
    return {SAMPLING_TOP_K if name == "top_k" else name: hint for name, hint in found.items()}


_OWN = _hints(Arguments, ("decoding", "masking", "compression"))
_DECODING = _decoding_hints()
_MASKING = _hints(MaskSinks, ("keys", "seed"))
_KEYS: Mapping[str, Any] = {"top_k": int, "rule": str}
_OF_RULES = {field.name for rule in RULES.values() for field in fields(rule)}
ARGUMENTS: tuple[str, ...] = (*_OWN, *_DECODING, *_KEYS, *sorted(_OF_RULES), *_MASKING, *DROPPING)
"""All names there are."""


def read_arguments(given: Mapping[str, Any]) -> Arguments:
    """Check and sort arguments as the harness hands them over. Raises `UserError`, in one line, for what can't be."""
    _known(given)
    if "pretrained" not in given:
        raise UserError("model_args needs pretrained=MODEL: a folder, a packaged model, or a name on the hub")
    if str(given.get("batch_size", 1)).startswith("auto"):
        raise UserError("batch_size auto is not for sinkscope, which does not probe memory; give a number")
    own = {name: read_value(name, _counted(name, given[name]), _OWN[name]) for name in _OWN if name in given}
    preset = None if own.get("preset") is None else find_preset(own["preset"])
    if preset is not None and "mc_num" in preset.settings:
        own.setdefault("mc_num", preset.settings["mc_num"])
    asked = {**({} if preset is None else preset.settings), **given}
    decoding = {name: read_value(name, asked[name], hint) for name, hint in _DECODING.items() if name in asked}
    if SAMPLING_TOP_K in decoding:
        decoding["top_k"] = decoding.pop(SAMPLING_TOP_K)
    seed = own.get("seed", 0)
    compression = read_compression(given, seed)
    arguments = Arguments(**own, decoding=decoding, masking=_masking(given, seed), compression=compression)
    _check(arguments)
    return arguments


def _known(given: Mapping[str, Any]) -> None:
    unknown = [name for name in given if name not in ARGUMENTS]
    if unknown:
        near = get_close_matches(unknown[0], ARGUMENTS, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise UserError(f"unknown model argument {unknown[0]!r}; {hint}there are {', '.join(ARGUMENTS)}")


def _counted(name: str, value: Any) -> Any:
    """The harness passes the batch size on as text; "auto" as dtype is its word for "as stored"."""
    if name == "batch_size" and isinstance(value, str) and value.isdecimal():
        return int(value)
    return None if name == "dtype" and value == "auto" else value


def _check(arguments: Arguments) -> None:
    for name in ("batch_size", "mc_num"):
        value = getattr(arguments, name)
        if value < 1:
            raise UserError(f"model argument {name} must be at least 1, got {value}")
    if arguments.dtype is not None:
        parse_dtype(arguments.dtype)
    parse_device(arguments.device)


def _masking(given: Mapping[str, Any], seed: int) -> MaskSinks | None:
    options = {name: read_value(name, given[name], _MASKING[name]) for name in _MASKING if name in given}
    keys = _keys(given)
    if keys is None:
        if options:
            name = next(iter(options))
            raise UserError(f"model argument {name} says how keys are masked, not which; add top_k=5, or rule=excess")
        return None
    return MaskSinks(keys, **options, seed=seed)


def _keys(given: Mapping[str, Any]) -> SinkRule | int | None:
    parameters = {name: given[name] for name in _OF_RULES if name in given}
    if "rule" not in given:
        if parameters:
            name = next(iter(parameters))
            raise UserError(f"model argument {name} is of a sink rule; name it too: rule={' or rule='.join(RULES)}")
        return read_value("top_k", given["top_k"], int) if "top_k" in given else None
    if "top_k" in given:
        raise UserError(
            f"top_k={given['top_k']} and rule={given['rule']} both say which keys are masked; leave one out"
        )
    name = read_value("rule", given["rule"], str)
    hints = get_type_hints(RULES[name]) if name in RULES else {}
    typed = {one: read_value(one, value, hints.get(one, float | str)) for one, value in parameters.items()}
    return make_rule(name, **typed)
