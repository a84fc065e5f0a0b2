"""The guard between a config.json and transformers: what would go wrong there in its own way is refused here, by name.

    checkpoint = guarded(checkpoint, Limits.of(stored))
    config = library_config(checkpoint, LlamaConfig)

A field that names code is taken out wherever it stands, so that transformers cannot be sent for any: `auto_map`,
attention and expert kernels of a hub. Numbers must be finite, and no larger than the stored weights justify: a list of
a million layers is built before anybody looks at them. Costs a walk over the fields. Misleads: a value of the right
kind and size can still be wrong, which the weights show (`weights`) or nothing does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from transformers import PreTrainedConfig
from transformers.activations import ACT2FN
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from sinkscope.errors import UserError, refusing, shortened
from sinkscope.families.base import per_layer
from sinkscope.families.checkpoint import Checkpoint
from sinkscope.families.stored import StoredTensor

_CODE = re.compile(r"^auto_map$|^_?(attn|experts)_implementation|^_flash_attn|^use_kernels$|^kernel_config$")
"""Fields that send transformers for code, or name an implementation, which is ours to choose."""
_OUTPUTS = re.compile(r"^(return_dict|output_(attentions|hidden_states|router_logits)|torchscript|use_bfloat16)$")
"""Fields that change the kind of a network's output."""
_LIBRARY_OWN = ("architectures", "model_type", "transformers_version", "_name_or_path", "name_or_path", "_commit_hash")

_LAYERS = re.compile(r"layers?$|blocks?$|depth$")
_FREE = re.compile(r"position|length|window|theta|base|token|_ids?$|ctx|seq|context|scal|chunk|seed|freq|budget|beta")
"""Numbers that are no size of a weight and may be as large as they like."""
_POSITIVE = re.compile(r"theta$|rotary_factor$|rope\w*\.(\w+\.)?\w*factor$")
_UNLIMITED_RANGE = "time_step_limit"
"""The one field whose published values hold infinity."""
_ACTIVATIONS = ("hidden_act", "hidden_activation", "activation_function", "activation")
_ROPE_TYPES = {"default", "mrope", "su", "axial", *ROPE_INIT_FUNCTIONS}
_LARGEST, _DEEPEST = torch.finfo(torch.float32).max, 16
_INSTALLED_QUANTISERS = ("bitsandbytes",)
"""Quantisation methods that run nothing but an installed package; others fetch compiled code."""

_SMALLEST_LIMIT, _FEWEST_LAYERS, _FEWEST_POSITIONS = 1 << 20, 128, 1 << 16
"""What is built in an instant, whatever the weights."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What the weight files justify. The defaults are for weights that were not fetched."""

    values: int = 1 << 44
    """Values in all tensors."""
    tensors: int = 1024
    axis: int = 1 << 24
    """The longest axis of a tensor."""
    known: bool = False

    @staticmethod
    def of(stored: Mapping[str, StoredTensor]) -> Limits:
        """Those of these headers; the defaults where there are none."""
        if not stored:
            return Limits()
        return Limits(
            values=sum(tensor.size for tensor in stored.values()),
            tensors=len(stored),
            axis=max((axis for tensor in stored.values() for axis in tensor.shape), default=1),
            known=True,
        )


def guarded(checkpoint: Checkpoint, limits: Limits) -> Checkpoint:
    """The checkpoint with a configuration that may be handed on. Raises `UserError` naming the field that may not."""
    config = _walked(checkpoint.config, limits, ())
    _check_kinds(config)
    return replace(checkpoint, config=config)


def field_names(config_class: type[PreTrainedConfig]) -> set[str]:
    """All names that a class of the library reads from its configuration, old spellings too."""
    return {one.name for one in fields(config_class)} | {
        *config_class.attribute_map,
        "head_dim",
        "rope_theta",
        "rope_scaling",
    }


def library_config(checkpoint: Checkpoint, config_class: type[PreTrainedConfig]) -> PreTrainedConfig:
    """The stored fields as a configuration of the library. Raises `UserError` where they are not one."""
    stored = {name: value for name, value in checkpoint.config.items() if name not in _LIBRARY_OWN}
    for one in fields(config_class):
        if type(stored.get(one.name)) is bool and type(one.default) in (int, float):
            raise UserError(f"config.json: {one.name}={stored[one.name]!r}, wanted a number")
    spelled = config_class.attribute_map
    _check_sizes({name: stored.get(spelled.get(name, name), stored.get(name)) for name in _SIZES}, spelled)
    with refusing(f"{checkpoint.name}: config.json is not one of {config_class.__name__}"):
        config: PreTrainedConfig = config_class.from_dict(stored)
        if not isinstance(config.get_text_config(), PreTrainedConfig):
            raise ValueError("this class has no text_config, decoder or text_encoder of its own")
    return config


_SIZES = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "head_dim", "max_position_embeddings"),
)


def check_config(config: PreTrainedConfig, limits: Limits) -> None:
    """Refuse sizes that no network has. Raises `UserError` with the field as its class spells it."""
    text = config.get_text_config()
    single = [name for name in _SIZES if name not in per_layer(text)]
    sizes = {name: getattr(text, name, None) for name in single}
    _check_sizes(sizes, text.attribute_map)
    positions, most = sizes.get("max_position_embeddings"), max(limits.axis, _FEWEST_POSITIONS)
    if type(positions) is int and positions > most and not hasattr(text, "rope_parameters"):
        name = text.attribute_map.get("max_position_embeddings", "max_position_embeddings")
        raise UserError(f"config.json: {name}={positions}, wanted at most {most}")


def _check_sizes(sizes: Mapping[str, Any], spelled: Mapping[str, str]) -> None:
    """Sizes are whole numbers above 0, one or one for each layer, and divide where they must. `spelled`: how a class
    calls them."""
    for name, value in sizes.items():
        for one in value if isinstance(value, (list, tuple)) else [value]:
            if one is not None and (type(one) is not int or one < 1) and (name, one) != ("max_position_embeddings", -1):
                raise UserError(f"config.json: {spelled.get(name, name)}={value!r}, wanted a whole number above 0")
    heads_of = "hidden_size" if sizes.get("head_dim") is None else "num_attention_heads"
    for name, by in ((heads_of, "num_attention_heads"), ("num_attention_heads", "num_key_value_heads")):
        value, parts = sizes.get(name), sizes.get(by)
        if type(value) is int and type(parts) is int and value % parts:
            told = f"{spelled.get(name, name)}={value} is not divisible by {spelled.get(by, by)}={parts}"
            raise UserError(f"config.json: {told}")


def _walked(value: Any, limits: Limits, path: tuple[str, ...], depth: int = 0) -> Any:
    if depth > _DEEPEST:
        raise UserError(f"config.json: {'.'.join(path[:3])}... is nested more than {_DEEPEST} deep")
    if isinstance(value, Mapping):
        if [*value] == ["__float__"]:  # how transformers writes infinity
            with refusing(f"config.json: {'.'.join(path)}={value!r} is no number"):
                return _walked(float(value["__float__"]), limits, path, depth)
        return {
            name: _walked(one, limits, (*path, name), depth + 1)
            for name, one in value.items()
            if not (_CODE.search(name) or _OUTPUTS.search(name))
        }
    if isinstance(value, list):
        return [_walked(one, limits, path, depth + 1) for one in value]
    if type(value) in (int, float):
        _check_number(value, limits, path)
    elif path and isinstance(value, str):
        _check_word(value, path)
    return value


def _check_number(value: float, limits: Limits, path: tuple[str, ...]) -> None:
    name, where = path[-1], f"config.json: {'.'.join(path)}={shortened(repr(value))}"
    too_large = abs(value) >= 1 << 63 if type(value) is int else not abs(value) <= _LARGEST
    if too_large and not (name == _UNLIMITED_RANGE and value == float("inf")):
        raise UserError(f"{where}, wanted a number that float32 can hold")
    if value <= 0 and _POSITIVE.search(".".join(path)):
        raise UserError(f"{where}, wanted a number above 0")
    if value < 0 and re.search(r"eps(ilon)?$", name):
        raise UserError(f"{where}, wanted a number that is not negative")
    if type(value) is not int or (most := _most(name, limits)) is None or value <= most:
        return
    justified = f"{limits.tensors} tensors of {limits.values} values" if limits.known else "what can be built"
    raise UserError(f"{where} is more than the weight files justify ({justified}); correct config.json")


def _most(name: str, limits: Limits) -> int | None:
    """The largest whole number that a field of this name may hold."""
    if _LAYERS.search(name):
        return max(limits.tensors, _FEWEST_LAYERS)
    return None if _FREE.search(name) else max(limits.values, _SMALLEST_LIMIT)


def _check_word(value: str, path: tuple[str, ...]) -> None:
    where = f"config.json: {'.'.join(path)}={shortened(repr(value))}"
    if path[-1] in _ACTIVATIONS and value not in ACT2FN:
        raise UserError(f"{where} is no activation that transformers knows; known: {', '.join(sorted(ACT2FN))}")
    if path[-1] in ("rope_type", "type") and any("rope" in name for name in path[:-1]) and value not in _ROPE_TYPES:
        raise UserError(f"{where} is no kind of rotary positions that transformers knows: {', '.join(_ROPE_TYPES)}")


def _check_kinds(config: Mapping[str, Any]) -> None:
    """Refuse values of the wrong kind in the fields that are read before, or beside, a class of the library."""
    for name, value in config.items():
        if value is None:
            continue
        several = value if type(value) is list and name in ("architectures", "eos_token_id") else [value]
        right, wanted = True, ""
        if name == "model_type":
            right, wanted = type(value) is str, "a word"
        elif name == "architectures":
            right, wanted = type(value) is list and all(type(one) is str for one in several), "a list of class names"
        elif name in ("dtype", "torch_dtype"):
            named = getattr(torch, value, None) if type(value) is str else None
            right, wanted = isinstance(named, torch.dtype), "a dtype of torch ('float32', 'bfloat16' ...)"
        elif name.endswith("_token_id"):
            right, wanted = all(one is None or type(one) is int for one in several), "a token id"
        elif name.endswith("_config"):
            right, wanted = type(value) is dict, "an object"
        if not right:
            raise UserError(f"config.json: {name}={value!r}, wanted {wanted}")
        if isinstance(value, dict):
            _check_quantised(value, f"{name}.")
    _check_quantised(config, "")


def _check_quantised(config: Mapping[str, Any], prefix: str) -> None:
    value = config.get("quantization_config")
    method = value.get("quant_method") if isinstance(value, dict) else value
    if value is not None and method not in _INSTALLED_QUANTISERS:
        raise UserError(
            f"config.json: {prefix}quantization_config={value!r}: weights quantised by {method!r} are not read, since "
            "transformers may fetch code for it; use the checkpoint in full precision, or a GGUF file of it"
        )
