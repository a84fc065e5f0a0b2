"""What a model family is, and the registry that finds one for a checkpoint.

A `Family` is the record that decoding, tracing and reports read: which token is the mask, whether row i-1 predicts
position i, which ids are special. An `Adapter` is how one kind of checkpoint becomes a stock transformers network: it
claims a configuration, names the network class and its configuration, reads the tokenizer and fills in the `Family`.

Adding a family is one new file in this folder that calls `register`: every module here is imported by
`sinkscope.families`.

Misleads: adapters are asked in the order of their rank, and the first that claims a configuration has it. The stock
families (masked-lm, causal-lm) claim whatever transformers knows, so they rank last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from sinkscope.discovery import Names
from sinkscope.errors import UserError
from sinkscope.families.checkpoint import Checkpoint, RawConfig
from sinkscope.families.fields import token_id

BLOCKS: Mapping[str, object] = {"gen_length": 128, "block_length": 32, "steps": 128, "confidence": "max-prob"}
"""LLaDA's published setting: keyword arguments of `Denoising`."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """What the rest of sinkscope must know of a model, apart from its weights."""

    name: str
    bidirectional: bool
    logit_shift: bool
    """Row i-1 of the logits predicts position i (Dream); row 0 then predicts itself."""
    mask_token_id: int | None
    special_ids: tuple[int, ...]
    """All special tokens known (bos, eos, pad, mask, cls, sep, end of turn ...), sorted."""
    eos_token_ids: tuple[int, ...]
    pad_token_id: int
    position_offset: int | None
    """Added to explicit position ids: 0, or pad + 1 for RoBERTa-like networks; None where the network takes none."""
    max_length: int
    """Context in tokens."""
    default_decoding: Mapping[str, object]
    """Keyword arguments of `Denoising` (mask-filling families) or `Decoding` (autoregressive ones)."""
    trained_length: int | None = None
    """The longest texts of its training in tokens, where that is known and shorter than the context can be."""
    has_cache: bool = True
    """Whether keys and values can be kept from pass to pass; masked language models have no cache."""
    closed_vocabulary: bool = False
    """A word that the tokenizer lacks was never seen in training: prompts with one are refused, not fed as unknown."""
    question_end: str | None = None
    """What stands before every answer in the training; a prompt that does not end with it is a text to be gone on with.
    """


@dataclass(frozen=True, kw_only=True)
class Body:
    """The stock network that a checkpoint is loaded into."""

    network_class: type[PreTrainedModel]
    config: PreTrainedConfig
    renames: Mapping[str, str] = field(default_factory=dict)
    """Regular expression of a stored weight's name -> name in `network_class`; `\\1` is the layer."""
    native_names: bool = True
    """False where transformers renames old weights on loading, so that stored names cannot be compared beforehand."""
    surplus: tuple[str, ...] = ()
    """Regular expressions of stored weights that may be left out, each with its reason beside it."""
    float32_rotation: bool = False
    """Queries and keys are rotated in float32 whatever the dtype of the weights."""


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """How one kind of checkpoint is recognised and loaded."""

    name: str
    summary: str
    claims: Callable[[Checkpoint], bool]
    body: Callable[[Checkpoint], Body]
    tokenizer: Callable[[Checkpoint], PreTrainedTokenizerBase | None]
    family: Callable[[Checkpoint, PreTrainedModel, PreTrainedTokenizerBase | None], Family]
    """Called with the checkpoint, the skeleton and the tokenizer."""
    rank: int = 0


_ADAPTERS: Names[Adapter] = Names("family")


def register(adapter: Adapter) -> None:
    """Add a family. Raises `UserError` where the name is taken by another."""
    _ADAPTERS.add(adapter.name, adapter)


def adapters() -> tuple[Adapter, ...]:
    """All known families, in the order in which they are asked."""
    return tuple(sorted(_ADAPTERS.values(), key=lambda adapter: (adapter.rank, adapter.name)))


def find_adapter(checkpoint: Checkpoint) -> Adapter:
    """The family that claims the checkpoint's configuration. Raises `UserError` naming the `model_type` where none
    does."""
    for adapter in adapters():
        if adapter.claims(checkpoint):
            return adapter
    named, known = checkpoint.config.get("model_type"), ", ".join(adapter.name for adapter in adapters())
    missing = '; add the field that says which network the weights are for ("model_type": "llama", for instance)'
    raise UserError(
        f"{checkpoint.name}: config.json: unknown model_type={named!r}{missing if named is None else ''}; the families "
        f"are {known} (the last two: whatever transformers itself loads as a masked or a causal language model)"
    )


def special_ids(stated: RawConfig, tokenizer: PreTrainedTokenizerBase | None, *more: int | None) -> tuple[int, ...]:
    """Ids of all special tokens that the stored configuration, the tokenizer or the family know, sorted.

    `stated` is what the checkpoint says, not the library's configuration: that one fills in ids nobody named.
    """
    found = {*more, stated.get("bos_token_id"), stated.get("pad_token_id"), *eos_ids(stated, tokenizer)}
    if tokenizer is not None:
        found.update(tokenizer.all_special_ids)
        found.update(index for index, token in tokenizer.added_tokens_decoder.items() if token.special)
    return tuple(sorted(_real_ids(found)))


def eos_ids(stated: RawConfig, tokenizer: PreTrainedTokenizerBase | None) -> tuple[int, ...]:
    """The ids that end a text: the stored configuration's one or several, and the tokenizer's."""
    stored = stated.get("eos_token_id")
    found = [*stored] if type(stored) is list else [stored]
    if tokenizer is not None:
        found.append(tokenizer.eos_token_id)
    return tuple(dict.fromkeys(_real_ids(found)))


def _real_ids(found: Iterable[int | None]) -> Iterator[int]:
    """Those that a token can have: -1 stands for none, and the libraries of tokenizers count in 32 bits."""
    return (int(index) for index in found if index is not None and 0 <= index < 1 << 31)


def pad_id(stated: RawConfig, config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase | None) -> int:
    """The id that fills short rows: the tokenizer's or configuration's pad, else the end of text, else 0.

    Ids that the network has no embedding for are passed by: tokenizers may know more words than it.
    """
    named, text = None if tokenizer is None else tokenizer.pad_token_id, config.get_text_config()
    for candidate in (named, getattr(text, "pad_token_id", None), *eos_ids(stated, tokenizer)):
        if candidate is not None and 0 <= candidate < text.vocab_size:
            return int(candidate)
    return 0


def mask_id(checkpoint: Checkpoint, size: int, tokenizer: PreTrainedTokenizerBase | None) -> int:
    """The mask token: the tokenizer's, else the stored configuration's. Raises `UserError` where there is none, or none
    of the `size` ids of the vocabulary."""
    named = None if tokenizer is None else tokenizer.mask_token_id
    mask = token_id(checkpoint.config, "mask_token_id") if named is None else named
    if mask is None:
        raise UserError(
            f"{checkpoint.name}: no mask token: neither a tokenizer with one nor mask_token_id in config.json"
        )
    vocabulary_holds(mask, size, "mask_token_id", checkpoint.name)
    return mask


def without_causal_mask(config: PreTrainedConfig) -> PreTrainedConfig:
    """The same configuration, marked for full attention; transformers reads the mark at every forward pass."""
    config.is_causal = False
    return config


def vocabulary_holds(index: int | None, size: int, name: str, where: Path | str) -> int | None:
    """`index` itself. Raises `UserError` where the vocabulary of `size` tokens has no such id."""
    if index is not None and not 0 <= index < size:
        raise UserError(f"{where}: {name}={index} lies outside the vocabulary of {size} tokens; correct config.json")
    return index
