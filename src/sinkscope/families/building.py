"""From a checkpoint to all that can be known without a weight: the one way of `load_model` and `describe_model`.

    prepared = prepare(resolve("GSAI-ML/LLaDA-8B-Instruct"))
    prepared.skeleton, prepared.family, prepared.shape

The network is built without memory (meta device) and tried there: a few tokens pass through it, with a cache where
decoding will use one. So what a class does with attention, caches and heads is seen, not believed. Costs tenths of a
second. Misleads: a network that looks at values (GPT-2, mixtures that sort) cannot be tried before it is loaded.
"""

from __future__ import annotations

import copy
import inspect
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    DynamicCache,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.masking_utils import sdpa_mask

from sinkscope.errors import UserError, refusing
from sinkscope.families.base import (
    Adapter,
    Body,
    Family,
    LayerShape,
    Opened,
    Shape,
    adapters,
    find_adapter,
    shape_of,
)
from sinkscope.families.checkpoint import Checkpoint
from sinkscope.families.guard import Limits, check_config, guarded
from sinkscope.families.stored import StoredTensor, read_remote, read_stored
from sinkscope.families.weights import check_stored

OURS = "sinkscope"
"""The attention function that every command loads a network with."""
_TRIAL = "sinkscope-trial"
_TRIAL_LENGTH = 5
_SPARE_WEIGHTS, _SPARE_VALUES = 1024, 1 << 25
"""Of a network beyond what is stored: weights before they are tied, and tables that are computed."""
_PACKED = 8
"""Values in a stored one, at most, where the weights are quantised."""


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A checkpoint that was found fit to be loaded."""

    checkpoint: Checkpoint
    body: Body
    stored: dict[str, StoredTensor]
    """Empty for a hub model whose weights are not in the cache, where the hub can't be asked for them."""
    files: dict[str, int]
    """Files of weights and their bytes; empty with it."""
    skeleton: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase | None
    family: Family
    shape: Shape
    tried: bool
    """False where only the loaded network can be tried."""


def prepare(checkpoint: Checkpoint, attention: str = OURS, *, weights: bool = True) -> Prepared:
    """All checks that need no weights. Raises `UserError` for a checkpoint that cannot be loaded with this attention.

    `weights=False` lets a hub model pass whose weight files are not in the cache; the hub is asked for their headers.
    """
    stored, files, absent = _headers(checkpoint, weights)
    limits = Limits.of(stored)
    checkpoint = guarded(checkpoint, limits)
    adapter = find_adapter(checkpoint)
    body = adapter.body(checkpoint)
    if checkpoint.gguf is not None:
        told = {str(name): value for name, value in body.config.to_dict().items() if name != "id2label"}
        guarded(replace(checkpoint, config=told), limits)
    _check_support(checkpoint, body, attention)
    if absent is not None:
        raise absent
    network_class: Any = body.network_class
    watchable = _calls_interface(network_class)
    skeleton = skeleton_of(checkpoint, body, limits, _TRIAL if watchable else None)
    if stored:
        check_stored(checkpoint, body, skeleton, stored)
    shape = shape_of(skeleton)
    tokenizer = adapter.tokenizer(checkpoint)
    family = adapter.family(Opened(checkpoint, skeleton, tokenizer))
    _check_told(checkpoint, adapter, family)
    seen = try_out(checkpoint, skeleton, shape, family) if watchable else shape
    return Prepared(
        checkpoint=checkpoint,
        body=body,
        stored=stored,
        files=files,
        skeleton=skeleton,
        tokenizer=tokenizer,
        family=family,
        shape=seen or shape,
        tried=seen is not None,
    )


def _check_told(checkpoint: Checkpoint, adapter: Adapter, family: Family) -> None:
    """Raise `UserError` for what a user says of a model that has no such thing."""
    if checkpoint.block_length is not None and not adapter.blockwise:
        known = ", ".join(one.name for one in adapters() if one.blockwise)
        raise UserError(
            f"{checkpoint.name} ({adapter.name}) has no blocks in its attention, and block_length="
            f"{checkpoint.block_length} was given; leave it out (block-causal families: {known})"
        )
    if checkpoint.mask_token_id not in (None, family.mask_token_id):
        raise UserError(f"{checkpoint.name} ({adapter.name}) has no mask token; leave mask_token_id out")


def _headers(checkpoint: Checkpoint, weights: bool) -> tuple[dict[str, StoredTensor], dict[str, int], UserError | None]:
    """The headers and the bytes of their files, or what is wrong with them: a configuration that is wrong too has the
    first word."""
    try:
        if not weights and checkpoint.revision is not None and not checkpoint.has_weights:
            return (*read_remote(checkpoint), None)
        return read_stored(checkpoint), {path.name: path.stat().st_size for path in checkpoint.weight_files()}, None
    except UserError as error:
        return {}, {}, error


def _calls_interface(network_class: Any) -> bool:
    """Whether attention goes through transformers' interface. That of Jamba, Qwen3-Next and others does, undeclared."""
    return bool(network_class.is_backend_compatible() or network_class._can_set_attn_implementation())


def _check_support(checkpoint: Checkpoint, body: Body, attention: str) -> None:
    network_class: Any = body.network_class
    name, eager = network_class.__name__, "in Python, load_model(..., attention='eager') runs it unwatched"
    if attention != "eager" and not _calls_interface(network_class):
        raise UserError(
            f"{checkpoint.name}: {name} has attention code of its own, so attention={attention!r} would not be used "
            f"and no command can watch it; take a model of another class ({eager})"
        )


def skeleton_of(checkpoint: Checkpoint, body: Body, limits: Limits, attention: str | None = None) -> PreTrainedModel:
    """The network without memory, for names, shapes and a trial. Refused before it has more weights than the files.

    `attention`: what the skeleton is run with; None where it is not run. Raises `UserError`.
    """
    check_config(body.config, limits)
    config, network_class = copy.deepcopy(body.config), body.network_class
    skeleton: Any
    config._attn_implementation = attention
    config._experts_implementation = None if attention is None else "batched_mm"  # the one that looks at no values
    packed = _PACKED if getattr(config, "quantization_config", None) is not None else 1
    most = 2 * packed * limits.values + _SPARE_VALUES
    thread, seen = threading.get_ident(), 0

    def count(_: nn.Module, name: str, weight: object) -> None:
        nonlocal seen
        if threading.get_ident() != thread or not isinstance(weight, Tensor):
            return
        seen += 1
        if seen > 4 * limits.tensors + _SPARE_WEIGHTS or weight.numel() > most:
            raise UserError(
                f"{checkpoint.name}: config.json asks for more than the {limits.tensors} weights of {limits.values} "
                f"values that are stored (at {name}, {list(weight.shape)}); correct config.json"
            )

    hook = register_module_parameter_registration_hook(count)
    try:
        with refusing(f"{checkpoint.name}: config.json makes no {network_class.__name__}"), torch.device("meta"):
            skeleton = network_class(config)
    finally:
        hook.remove()
    wanted = sum(weight.numel() for weight in (*skeleton.parameters(), *skeleton.buffers()))
    if limits.known and wanted > most:
        raise UserError(
            f"{checkpoint.name}: config.json asks for {wanted} values, {limits.values} are stored; correct config.json"
        )
    network: PreTrainedModel = skeleton.eval()
    return network


_calls = threading.local()


class _Call(NamedTuple):
    """One call of attention. layer: the module's own number, None where it has none. causal: None where its mask says
    what is seen."""

    layer: int | None
    heads: int
    kv_heads: int
    head_dim: int
    causal: bool | None
    learned_sink: bool


def _note(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    """Take down the shapes of one call of attention; the output has its shape and nothing else."""
    refused = foreign_keys(module, kwargs)
    if refused is not None:
        raise ValueError(f"its attention {refused}")
    groups = getattr(module, "num_key_value_groups", None) or query.shape[1] // key.shape[1]
    if query.shape[1] != groups * key.shape[1]:
        raise ValueError(f"{query.shape[1]} heads do not go with {key.shape[1]} key heads in {groups} groups")
    asked = kwargs.get("is_causal")
    causal = bool(getattr(module, "is_causal", True) if asked is None else asked)
    told = None if attention_mask is not None or query.shape[2] == 1 else causal
    sink = kwargs.get("s_aux") is not None
    number = getattr(module, "layer_idx", None)
    layer = number if type(number) is int else None
    _calls.seen.append(_Call(layer, query.shape[1], key.shape[1], key.shape[-1], told, sink))
    return value.new_zeros((query.shape[0], query.shape[2], query.shape[1], value.shape[-1])), None


def foreign_keys(module: nn.Module, given: Mapping[str, Any]) -> str | None:
    """What keeps an attention call from being one over the tokens' own keys under the mask that came with it; None for
    nothing. given: what the network hands over beside queries, keys, values and mask."""
    # DeepSeek 3.2, MiniMax M3 and their kin put what they pick into the mask for "eager" and "sdpa" alone.
    if any(given.get(name) is not None for name in ("indices", "block_indices")):
        return "picks keys beside its mask"
    if getattr(module, "compressor", None) is not None:
        return "has keys that stand for several tokens each"  # DeepSeek 4
    return None


AttentionInterface.register(_TRIAL, _note)
AttentionMaskInterface.register(_TRIAL, sdpa_mask)


@torch.no_grad()
def try_out(checkpoint: Checkpoint, network: PreTrainedModel, shape: Shape, family: Family) -> Shape | None:
    """Pass tokens through a network that has the trial's attention, and say what shape its attention has.

    None where the network looks at values and has none. Raises `UserError` for a network that fails or calls no
    attention.
    """
    name, stacks, caching = type(network).__name__, family.renoises, not family.bidirectional
    accepted, device = inspect.signature(network.forward).parameters, torch.device(network.device)
    options: dict[str, Any] = {"use_cache": caching} if "use_cache" in accepted else {}
    _calls.seen = []
    lengths = (_TRIAL_LENGTH, 1) if caching else (_TRIAL_LENGTH,)
    with refusing(f"{checkpoint.name}: {name} can't be run as sinkscope runs a model"):
        cache = DynamicCache(config=network.config.get_text_config()) if caching or stacks else None
        try:
            for length in lengths:
                tokens = torch.zeros(1, length, dtype=torch.long, device=device)
                given = {"decoder_input_ids": tokens} if stacks else options
                with device:
                    network(input_ids=tokens, **given, **({} if cache is None else {"cache": cache}))
        except (RuntimeError, NotImplementedError) as error:
            if device.type == "meta" and "meta tensor" in str(error):
                return None
            raise
    if not _calls.seen:
        raise UserError(f"{checkpoint.name}: {name} computes no attention with this config.json: nothing to watch")
    calls: list[_Call] = _calls.seen
    if not stacks and any(call.causal is not None and call.causal != caching for call in calls):
        sees = "does not see tokens from left to right" if caching else "sees no token behind its own"
        raise UserError(
            f"{checkpoint.name}: {name} {sees} with this config.json, as its family does; correct is_causal or "
            "is_decoder there, or architectures"
        )
    seen = Shape(
        layers=shape.layers,
        heads=max(call.heads for call in calls),
        kv_heads=max(call.kv_heads for call in calls),
        head_dim=max(call.head_dim for call in calls),
        learned_sinks=any(call.learned_sink for call in calls),
    )
    passes = 2 if stacks else len(lengths)
    attending = _attending(calls[: len(calls) // passes], shape.layers)
    return seen if attending == seen.each else replace(seen, attending=attending)


def _attending(calls: list[_Call], layers: int) -> tuple[LayerShape, ...]:
    """The layers of one pass, by their modules' own numbers; where those don't rise, a module serves several layers,
    and layers are counted as they are called."""
    own = [-1 if call.layer is None else call.layer for call in calls]
    rising = own == sorted(set(own)) and own[0] >= 0 and own[-1] < layers
    numbers = own if rising else range(len(calls))
    return tuple(LayerShape(number, call.heads, call.kv_heads) for number, call in zip(numbers, calls, strict=True))


def try_loaded(prepared: Prepared, network: PreTrainedModel) -> Shape:
    """The same trial of a loaded network, for one that could not be tried without its weights."""
    before = network.config._attn_implementation
    network.set_attn_implementation(_TRIAL)
    try:
        seen = try_out(prepared.checkpoint, network, prepared.shape, prepared.family)
    finally:
        network.set_attn_implementation(before)
    return seen or prepared.shape
