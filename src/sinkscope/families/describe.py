"""What a checkpoint is, told without reading a weight: the record behind `sinkscope info`.

    describe_model("rxnmapper").parameters

Costs the configuration, the tokenizer and the headers of the weight files. For a hub model whose weights are not in
the cache only the small files are fetched; the dtype is then the one config.json names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from sinkscope.errors import UserError
from sinkscope.families.base import Body, find_adapter
from sinkscope.families.checkpoint import Checkpoint, resolve
from sinkscope.families.shape import shape_of
from sinkscope.families.stored import StoredTensor, common_dtype, read_stored
from sinkscope.families.weights import check_stored


@dataclass(frozen=True, kw_only=True)
class ModelDescription:
    """All that `sinkscope info` prints."""

    name: str
    revision: str | None
    folder: Path
    family: str
    model_type: str
    """As the checkpoint says it."""
    architecture: str
    """The stock transformers class that it is loaded into."""
    parameters: int
    stored_dtype: str
    """Of most weights: F32, BF16, Q4_1 ..."""
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    max_length: int
    trained_length: int | None
    """The longest texts of its training in tokens, where known."""
    vocabulary: int
    mask_token_id: int | None
    mask_token: str | None
    logit_shift: bool
    bidirectional: bool
    special_ids: tuple[int, ...]
    special_tokens: Mapping[int, str]
    """Empty without a tokenizer."""
    eos_token_ids: tuple[int, ...]
    pad_token_id: int
    default_decoding: Mapping[str, object]
    tokenizer: str | None
    """The tokenizer's class."""
    files: Mapping[str, int]
    """Weight files and their sizes in bytes."""


def describe_model(name_or_folder: str | Path, *, revision: str | None = None) -> ModelDescription:
    """Describe a checkpoint.

    Raises `UserError` for one that `load_model` would refuse before reading weights, whatever its attention function.
    """
    checkpoint = resolve(name_or_folder, revision=revision, weights=False)
    adapter = find_adapter(checkpoint)
    body = adapter.body(checkpoint)
    stored = _stored(checkpoint)
    skeleton = body.skeleton()
    if stored and body.native_names:
        check_stored(checkpoint, body, skeleton, stored)
    tokenizer = adapter.tokenizer(checkpoint)
    family = adapter.family(checkpoint, skeleton, tokenizer)
    shape = shape_of(skeleton)
    return ModelDescription(
        name=checkpoint.name,
        revision=checkpoint.revision,
        folder=checkpoint.folder,
        family=family.name,
        model_type=str(checkpoint.config.get("model_type", body.config.model_type)),
        architecture=body.network_class.__name__,
        parameters=sum(weight.numel() for weight in skeleton.parameters()),
        stored_dtype=common_dtype(stored) if stored else _named_dtype(body),
        layers=shape.layers,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        max_length=family.max_length,
        trained_length=family.trained_length,
        vocabulary=skeleton.config.get_text_config().vocab_size,
        mask_token_id=family.mask_token_id,
        mask_token=_token(tokenizer, family.mask_token_id),
        logit_shift=family.logit_shift,
        bidirectional=family.bidirectional,
        special_ids=family.special_ids,
        special_tokens={}
        if tokenizer is None
        else {index: str(_token(tokenizer, index)) for index in family.special_ids},
        eos_token_ids=family.eos_token_ids,
        pad_token_id=family.pad_token_id,
        default_decoding=family.default_decoding,
        tokenizer=None if tokenizer is None else type(tokenizer).__name__,
        files={path.name: path.stat().st_size for path in checkpoint.weight_files()} if stored else {},
    )


def _stored(checkpoint: Checkpoint) -> dict[str, StoredTensor]:
    """The headers; empty for a hub model whose weights have not been fetched, which is no error here."""
    if checkpoint.revision is None:
        return read_stored(checkpoint)
    try:
        checkpoint.weight_files()
    except UserError:
        return {}
    return read_stored(checkpoint)


def _named_dtype(body: Body) -> str:
    return str(body.config.dtype or "unknown").removeprefix("torch.")


def _token(tokenizer: PreTrainedTokenizerBase | None, index: int | None) -> str | None:
    if tokenizer is None or index is None:
        return None
    token = tokenizer.convert_ids_to_tokens(index)
    return None if token is None else str(token)
