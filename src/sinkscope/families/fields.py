"""Reading a foreign config.json field by field, and refusing what the native network cannot do.

A field that asks for another computation must stop the loading: the weights would fit and the logits would be wrong.
So a field is either read, or known to change nothing, or refused: `refuse_surprises` knows no others. Misleads: whether
a field changes nothing was judged for inference; dropouts and initialisations are among those.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from transformers import GenerationConfig

from sinkscope.errors import UserError
from sinkscope.families.checkpoint import RawConfig

Allowed = Mapping[str, tuple[object, tuple[object, ...]]]
"""Field name -> (the value its own code assumes when it is left out, the values that the native network computes)."""

NATIVE: Allowed = {
    "quantization_config": (None, (None,)),
    "is_causal": (None, (None, False)),
    "is_encoder_decoder": (False, (False, None)),
    "is_decoder": (False, (False, None)),
    "add_cross_attention": (False, (False, None)),
    "partial_rotary_factor": (None, (None, 1, 1.0)),
}
"""What every diffusion family needs, whatever its body."""

_SAMPLING: Any = GenerationConfig
_INERT = re.compile(
    r"""_token_id$ | dropout(_p|_prob|_rate)?$ | _pdrop$ | ^init(ializer)?_(\w+_)?(device|factor|fn|range|std)$
    | ^_?flash_attention$ | _implementation(_internal|_autoset)?$
    | ^(auto_map|architectures|model_type|transformers_version|_?name_or_path|_commit_hash|dtype|torch_dtype
    |id2label|label2id|num_labels|problem_type|finetuning_task|task_specific_params|tokenizer_class|prefix
    |use_cache|output_\w+|return_dict|torchscript|use_bfloat16|tf_legacy_loss|chunk_size_feed_forward
    |gradient_checkpointing|pretraining_tp|unsloth_\w+)$""",
    re.VERBOSE,
)
"""Names of fields that change nothing of a forward pass without gradients."""
_NEUTRAL: tuple[object, ...] = (None, False, [], {})


def refuse_surprises(config: RawConfig, allowed: Allowed, body: str, known: Iterable[str] | None = None) -> None:
    """Raise `UserError` with the first field of `config` that asks for what `body` does not compute.

    `known`: the fields that the caller reads or that change nothing here; any other one that says more than "no" is
    refused. None where transformers itself reads the fields.
    """
    for name, (assumed, values) in allowed.items():
        value = config.get(name, assumed)
        if not any(value == fine and type(value) is type(fine) for fine in values):
            wanted = " or ".join(repr(fine) for fine in values)
            left_out = "" if name in config else " (left out, so its default)"
            raise UserError(f"config.json: {name}={value!r}{left_out} is not what {body} computes: it needs {wanted}")
    if known is None:
        return
    understood = {*known, *allowed, *_SAMPLING().to_dict()}
    for name, value in config.items():
        if name in understood or _INERT.search(name) or any(value is one or value == one != 0 for one in _NEUTRAL):
            continue
        raise UserError(
            f"config.json: {name}={value!r} is a field that sinkscope does not know for {body}, and it may ask for "
            "another computation; take it out if it changes nothing"
        )


def refuse_windows(config: RawConfig, body: str) -> None:
    """Raise `UserError` where `layer_types`, transformers 5's spelling of sliding windows, names anything but full
    attention."""
    kinds = config.get("layer_types")
    if kinds is not None and (type(kinds) is not list or any(kind != "full_attention" for kind in kinds)):
        raise UserError(f"config.json: layer_types={kinds!r}, but {body} is used with 'full_attention' in every layer")


def rotary_base(config: RawConfig, default: float | None = None) -> float | None:
    """The base of the rotary positions, in either spelling: `rope_theta`, or inside `rope_parameters`.

    Raises `UserError` where two of them differ.
    """
    stated = {"rope_theta": config.get("rope_theta")}
    for name in ("rope_parameters", "rope_scaling"):
        inner = config.get(name)
        if isinstance(inner, dict):
            stated[f"{name}.rope_theta"] = inner.get("rope_theta")
    found = {name: real({name: value}, name) for name, value in stated.items() if value is not None}
    if len(set(found.values())) > 1:
        told = ", ".join(f"{name}={value:g}" for name, value in found.items())
        raise UserError(f"config.json: {told} contradict each other; leave one of them")
    return next(iter(found.values()), default)


def unscaled_base(config: RawConfig, body: str, default: float = 10000.0) -> float:
    """As `rotary_base`. Raises `UserError` where positions are scaled, by whatever name."""
    for name in ("rope_parameters", "rope_scaling"):
        stated = config.get(name)
        rest = dict(stated) if isinstance(stated, dict) else {"": stated}
        kinds = {rest.pop("rope_type", "default"), rest.pop("type", "default")} if isinstance(stated, dict) else set()
        rest.pop("rope_theta", None)
        if kinds - {"default"} or any(value not in (None, 1) or type(value) is bool for value in rest.values()):
            raise UserError(f"config.json: {name}={stated!r} is not what {body} computes: it needs unscaled positions")
    return rotary_base(config, default) or default


def whole(config: RawConfig, name: str, default: int | None = None) -> int:
    """A positive whole number. Raises `UserError` where the field is absent without a default, or is something else."""
    value = config.get(name)
    value = default if value is None else value
    if type(value) is not int or value < 1:
        raise UserError(f"config.json: {name}={value!r}, wanted a whole number above 0")
    return value


def token_id(config: RawConfig, name: str) -> int | None:
    """A token id or None. Raises `UserError` for anything else."""
    value = config.get(name)
    if value is not None and (type(value) is not int or value < 0):
        raise UserError(f"config.json: {name}={value!r}, wanted a token id")
    return value


def real(config: RawConfig, name: str, default: float | None = None) -> float:
    """A positive number. Raises `UserError` where the field is absent without a default, or is something else."""
    value: Any = config.get(name)
    value = default if value is None else value
    if type(value) not in (int, float) or not 0 < value < float("inf"):
        raise UserError(f"config.json: {name}={value!r}, wanted a number above 0")
    return float(value)
