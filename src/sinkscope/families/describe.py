"""What a checkpoint is, told without reading a weight (`sinkscope info`); and which model something was made by.

    describe_model("rxnmapper").parameters

A description costs the configuration, the tokenizer and the headers of the weight files. For a hub model whose weights
are not in the cache only the small files are fetched, and the hub is asked for the headers (`hub`); where it can't be
reached, sizes are left out and the dtype is the one config.json names.

Keys of another model, or of the same one trained further, mean nothing to a model, and its numbers go into no trace or
grid of another. A name can be a folder that was written anew, so an `Identity` samples the weights themselves: some 64
numbers of every one, evenly spaced, which takes milliseconds. What the configuration says beside its class's defaults
is part of the digest: the same weights rotated otherwise are another model.

Where it misleads: weights that differ in a few places only may be sampled past.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedTokenizerBase

from sinkscope.errors import UserError
from sinkscope.families.base import LayerShape
from sinkscope.families.building import Prepared, prepare
from sinkscope.families.checkpoint import resolve
from sinkscope.families.model import Model, parse_dtype, stored_dtype
from sinkscope.families.stored import common_dtype

_OF_FAMILY = (
    *("max_length", "trained_length", "mask_token_id", "logit_shift", "bidirectional", "renoises", "special_ids"),
    *("eos_token_ids", "pad_token_id", "default_decoding"),
)
_SAMPLED = 64
_NAMES = frozenset({"_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version"})
"""Of a configuration, what changes no number, or is compared by itself."""


@dataclass(frozen=True, kw_only=True)
class ModelDescription:
    """All that `sinkscope info` prints."""

    name: str
    revision: str | None
    folder: Path
    family: str
    model_type: str  # as the checkpoint says it
    architecture: str  # the stock transformers class that it is loaded into
    parameters: int
    stored_dtype: str  # of most weights: F32, BF16, Q4_1 ...
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    learned_sinks: bool  # whether attention may go to no key
    attending: tuple[LayerShape, ...]  # layers with attention, where not all have the same
    max_length: int
    trained_length: int | None  # the longest texts of its training in tokens, where known
    vocabulary: int
    mask_token_id: int | None
    mask_token: str | None
    logit_shift: bool
    bidirectional: bool
    renoises: bool  # whether its noise is random tokens, not masks
    block_length: int | None  # of its attention, where that is block-causal
    special_ids: tuple[int, ...]
    special_tokens: Mapping[int, str]  # empty without a tokenizer
    eos_token_ids: tuple[int, ...]
    pad_token_id: int
    default_decoding: Mapping[str, object]
    tokenizer: str | None  # the tokenizer's class
    files: Mapping[str, int]  # weight files and their sizes in bytes
    file_bytes: int  # of all of them
    fetched: bool  # whether they are on this disk
    dtype: str | None  # that the weights are loaded in; None where neither files nor configuration tell
    weight_bytes: int | None  # of memory, in that dtype; a few classes keep a router or so in float32


def describe_model(
    name_or_folder: str | Path,
    *,
    dtype: str | torch.dtype | None = None,
    revision: str | None = None,
    mask_token_id: int | None = None,
    block_length: int | None = None,
) -> ModelDescription:
    """Describe a checkpoint; parameters as for `load_model`.

    Raises `UserError` for one that `load_model` would refuse before reading weights.
    """
    return describe(
        examine(name_or_folder, revision=revision, mask_token_id=mask_token_id, block_length=block_length), dtype
    )


def examine(name_or_folder: str | Path, *, revision: str | None = None, **told: int | None) -> Prepared:
    """All that can be known of a checkpoint without its weights, nor fetching them; parameters as for `load_model`."""
    return prepare(resolve(name_or_folder, revision=revision, weights=False, **told), weights=False)


def without_weights(prepared: Prepared) -> Model:
    """A model of which no pass can be made, for what is planned before one is loaded."""
    one = prepared.checkpoint
    return Model(prepared.skeleton, prepared.tokenizer, prepared.family, one.name, one.revision, prepared.shape)


def describe(prepared: Prepared, dtype: str | torch.dtype | None = None) -> ModelDescription:
    """Describe what was examined. dtype: that it would be loaded in; as stored where None."""
    checkpoint, body, stored, skeleton = prepared.checkpoint, prepared.body, prepared.stored, prepared.skeleton
    tokenizer, family, files = prepared.tokenizer, prepared.family, prepared.files
    told: dict[str, Any] = {name: getattr(family, name) for name in _OF_FAMILY}
    known = stored or checkpoint.gguf is not None or body.config.dtype is not None
    chosen = parse_dtype(dtype) if dtype is not None else stored_dtype(checkpoint, body, stored) if known else None
    parameters = sum(weight.numel() for weight in skeleton.parameters())
    return ModelDescription(
        name=checkpoint.name,
        revision=checkpoint.revision,
        folder=checkpoint.folder,
        family=family.name,
        model_type=str(checkpoint.config.get("model_type", body.config.model_type)),
        architecture=body.network_class.__name__,
        parameters=parameters,
        stored_dtype=common_dtype(stored) if stored else str(body.config.dtype or "unknown").removeprefix("torch."),
        **vars(prepared.shape),
        **told,
        block_length=None if family.blocks is None else family.blocks.length,
        vocabulary=skeleton.config.get_text_config().vocab_size,
        mask_token=_token(tokenizer, family.mask_token_id),
        special_tokens={}
        if tokenizer is None
        else {index: str(_token(tokenizer, index)) for index in family.special_ids},
        tokenizer=None if tokenizer is None else type(tokenizer).__name__,
        files=files,
        file_bytes=sum(files.values()),
        fetched=bool(files) and all((checkpoint.folder / name).is_file() for name in files),
        dtype=None if chosen is None else str(chosen).removeprefix("torch."),
        weight_bytes=None if chosen is None else parameters * chosen.itemsize,
    )


def _token(tokenizer: PreTrainedTokenizerBase | None, index: int | None) -> str | None:
    if tokenizer is None or index is None:
        return None
    token = tokenizer.convert_ids_to_tokens(index)
    return None if token is None else str(token)


@dataclass(frozen=True, kw_only=True)
class Identity:
    """What must be the same for a cache to be read again. `name` is for messages alone."""

    name: str
    revision: str | None
    family: str
    dtype: str
    weights: str
    """Digest of a sample of the weights, and of the configuration."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def identity_of(model: Model) -> Identity:
    """The identity of a loaded model."""
    network: Any = model.network
    config = {name: value for name, value in network.config.to_diff_dict().items() if name not in _NAMES}
    return Identity(
        name=model.name,
        revision=model.revision,
        family=model.family.name,
        dtype=str(model.dtype).removeprefix("torch."),
        weights=digest_of(model.network, config),
    )


def digest_of(network: nn.Module, config: Mapping[str, Any]) -> str:
    """Digest of a sample of a network's weights, and of a configuration."""
    digest = hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode())
    for name, weight in network.named_parameters():
        flat = weight.detach().flatten()
        sample = flat[:: max(1, len(flat) // _SAMPLED)].tolist()
        digest.update(f"{name} {tuple(weight.shape)} {sample}".encode())
    return digest.hexdigest()[:32]


def check_identity(saved: Identity, model: Model, what: str) -> None:
    """Raise `UserError` unless what was saved came from this very model. what: how a message calls it."""
    own = identity_of(model)
    for field, kind in (("family", "family"), ("revision", "revision"), ("dtype", "dtype"), ("weights", "weights")):
        before, now = getattr(saved, field), getattr(own, field)
        if before != now:
            differs = "other weights or another configuration" if field == "weights" else f"{kind} {before}, not {now}"
            raise UserError(
                f"{what} was made by {saved.name} with {differs}: {model.name} can't use it; load that model, or make "
                "the prefix again"
            )
