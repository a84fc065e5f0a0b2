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

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from sinkscope.discovery import Names
from sinkscope.errors import UserError
from sinkscope.families.checkpoint import Checkpoint, RawConfig
from sinkscope.families.fields import token_id

BLOCKS: Mapping[str, object] = {"gen_length": 128, "block_length": 32, "steps": 128, "confidence": "max-prob"}
"""LLaDA's published setting: keyword arguments of `Denoising`."""
IN_BLOCKS: Mapping[str, object] = {"gen_length": 128, "block_length": None, "steps": None, "cache": "blocks"}
"""What the settings of block-causal families have in common: the model's own blocks, one position a step at least."""


@dataclass(frozen=True, kw_only=True)
class Blockwise:
    """Block-causal attention: a token sees its own block in both directions, and all blocks before it.

    length: tokens of a block; 1 is an autoregressive model. from_prompt: blocks are counted from the end of the prompt,
    so the first one of a text may be short; else from the text's first token, and a prompt may end inside a block.
    causal_context: tokens of the prompt and of finished blocks see no token behind their own (Nemotron). seeded: the
    pass that reads what is finished predicts the first token of the next block, which is committed at once.
    """

    length: int
    from_prompt: bool = False
    causal_context: bool = False
    seeded: bool = False


@dataclass(frozen=True, kw_only=True)
class Family:
    """What the rest of sinkscope must know of a model, apart from its weights."""

    name: str
    bidirectional: bool
    logit_shift: bool  # row i-1 of the logits predicts position i (Dream); row 0 then predicts itself
    mask_token_id: int | None
    special_ids: tuple[int, ...]  # all special tokens known (bos, eos, pad, mask, cls, sep, end of turn ...), sorted
    eos_token_ids: tuple[int, ...]
    pad_token_id: int
    position_offset: int | None
    """Added to explicit position ids: 0, or pad + 1 for RoBERTa-like networks; None where the network takes none."""
    max_length: int  # context in tokens
    default_decoding: Mapping[str, object]  # keyword arguments of the settings of its kind
    trained_length: int | None = None  # the longest texts of its training in tokens, where known
    blocks: Blockwise | None = None  # block-causal attention; None: a bidirectional model sees its whole canvas
    renoises: bool = False
    """Noise is random tokens, not masks; two stacks, and `blocks` are its canvases (DiffusionGemma)."""
    has_cache: bool = True  # whether keys and values can be kept from pass to pass; not in masked language models
    closed_vocabulary: bool = False
    """A word that the tokenizer lacks was never seen in training: prompts with one are refused, not fed as unknown."""
    question_end: str | None = None
    """What stands before every answer in the training; a prompt without it at its end is continued as a text."""


class LayerShape(NamedTuple):
    """Heads of one layer with attention. number: the network's own, from 0."""

    number: int
    heads: int
    kv_heads: int

    def __str__(self) -> str:
        return f"{self.number}: {self.heads} heads over {self.kv_heads}"


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Counts that attention statistics are laid out by. `kv_heads` is below `heads` for grouped-query attention.

    Where layers differ in heads, in key heads or in the size of a head, these are the largest; `layers` counts those
    without attention too. learned_sinks: whether attention may go to no key. attending: the layers with attention in
    the order of their calls, where not all layers have the same. Both are known of a network that was tried.
    """

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    learned_sinks: bool = False
    attending: tuple[LayerShape, ...] = ()

    @property
    def each(self) -> tuple[LayerShape, ...]:
        """The layers with attention, in the order of their calls."""
        alike = (LayerShape(number, self.heads, self.kv_heads) for number in range(self.layers))
        return self.attending or tuple(alike)


@dataclass(frozen=True, kw_only=True)
class Body:
    """The stock network that a checkpoint is loaded into."""

    network_class: type[PreTrainedModel]
    config: PreTrainedConfig
    renames: Mapping[str, str] = field(default_factory=dict)
    """Regular expression of a stored weight's name -> name in `network_class`; `\\1` is the layer."""
    native_names: bool = True
    """False where transformers renames old weights on loading, so that stored names cannot be compared beforehand."""
    surplus: tuple[str, ...] = ()  # regular expressions of stored weights that may be left out
    float32_rotation: bool = False  # queries and keys are rotated in float32 whatever the dtype of the weights


@dataclass(frozen=True)
class Opened:
    """A checkpoint with its network without weights and its tokenizer; what a family's record is made from."""

    checkpoint: Checkpoint
    skeleton: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase | None

    def family(
        self,
        name: str,
        *,
        mask: int | None,
        default_decoding: Mapping[str, object],
        ends: Iterable[int] = (),
        **more: Any,
    ) -> Family:
        """The record, special ids gathered. ends: ids that end a text beside those that the checkpoint and the
        tokenizer name. more: other fields of `Family`; by default it fills masks, unshifted, at positions 0, 1, ..."""
        config = self.skeleton.config
        # Not the library's configuration where there is another: that one fills in ids nobody named.
        stated = self.checkpoint.config if self.checkpoint.gguf is None else config.to_dict()
        stated = {**(stated.get("text_config") or {}), **stated}
        eos = tuple(dict.fromkeys([*self._eos_ids(stated), *ends]))
        special = {mask, *eos, stated.get("bos_token_id"), stated.get("pad_token_id")}
        if self.tokenizer is not None:
            special.update(self.tokenizer.all_special_ids)
            special.update(index for index, token in self.tokenizer.added_tokens_decoder.items() if token.special)
        fields: dict[str, Any] = {"bidirectional": True, "logit_shift": False, "position_offset": 0, **more}
        if "max_length" not in fields:
            fields["max_length"] = config.max_position_embeddings
        return Family(
            name=name,
            mask_token_id=mask,
            special_ids=tuple(sorted(real_ids(special))),
            eos_token_ids=eos,
            pad_token_id=self._pad_id(eos),
            default_decoding=default_decoding,
            **fields,
        )

    @property
    def mask(self) -> int | None:
        """The mask token: the tokenizer's, else the stored configuration's, else the one that the user names. Raises
        `UserError` for an id without an embedding, and for a user's that is another than the files'."""
        named = None if self.tokenizer is None else self.tokenizer.mask_token_id
        return self.agreed(token_id(self.checkpoint.config, "mask_token_id") if named is None else named)

    def agreed(self, stored: int | None) -> int | None:
        """The mask token of the files, or the user's where they name none. Raises `UserError` as `mask` does."""
        told = self.checkpoint.mask_token_id
        if None not in (stored, told) and stored != told:
            raise UserError(
                f"{self.checkpoint.name}: mask_token_id={told} was given, the files say {stored}; leave it out"
            )
        return self.in_vocabulary(stored if told is None else told)

    def in_vocabulary(self, mask: int | None) -> int | None:
        """`mask` itself. Raises `UserError` where the network's vocabulary has no such id."""
        size = self.skeleton.config.vocab_size
        if mask is not None and not 0 <= mask < size:
            raise UserError(
                f"{self.checkpoint.name}: mask_token_id={mask} lies outside the vocabulary of {size} tokens; correct "
                f"{'config.json' if self.checkpoint.mask_token_id is None else 'it'}"
            )
        return mask

    def _eos_ids(self, stated: RawConfig) -> list[int]:
        """The ids that end a text: the stored configuration's one or several, and the tokenizer's."""
        stored = stated.get("eos_token_id")
        named = [] if self.tokenizer is None else [self.tokenizer.eos_token_id]
        return real_ids([*(stored if type(stored) is list else [stored]), *named])

    def _pad_id(self, eos: Iterable[int]) -> int:
        """The id that fills short rows: the tokenizer's or configuration's pad, else the end of text, else 0.

        Ids that the network has no embedding for are passed by: tokenizers may know more words than it.
        """
        text = self.skeleton.config.get_text_config()
        named = None if self.tokenizer is None else self.tokenizer.pad_token_id
        candidates = (named, getattr(text, "pad_token_id", None), *eos)
        return next((int(one) for one in candidates if one is not None and 0 <= one < text.vocab_size), 0)


def real_ids(found: Iterable[int | None]) -> list[int]:
    """Those that a token can have: -1 stands for none, and the libraries of tokenizers count in 32 bits."""
    return [int(index) for index in found if index is not None and 0 <= index < 1 << 31]


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """How one kind of checkpoint is recognised and loaded."""

    name: str
    summary: str
    claims: Callable[[Checkpoint], bool]
    body: Callable[[Checkpoint], Body]
    tokenizer: Callable[[Checkpoint], PreTrainedTokenizerBase | None]
    family: Callable[[Opened], Family]
    rank: int = 0
    blockwise: bool = False  # whether a user may name the blocks of its attention


_ADAPTERS: Names[Adapter] = Names("family")


def register(adapter: Adapter) -> None:
    """Add a family. Raises `UserError` where the name is taken by another."""
    _ADAPTERS.add(adapter.name, adapter)


def adapters() -> tuple[Adapter, ...]:
    """All known families, in the order in which they are asked."""
    return tuple(sorted(_ADAPTERS.values(), key=lambda adapter: (adapter.rank, adapter.name)))


def find_adapter(checkpoint: Checkpoint) -> Adapter:
    """The first family that claims the checkpoint's configuration. Raises `UserError` where none does."""
    for adapter in adapters():
        if adapter.claims(checkpoint):
            return adapter
    named, known = checkpoint.config.get("model_type"), ", ".join(adapter.name for adapter in adapters())
    missing = '; add the field that says which network the weights are for ("model_type": "llama", for instance)'
    raise UserError(
        f"{checkpoint.name}: config.json: unknown model_type={named!r}{missing if named is None else ''}; the families "
        f"are {known} (the last two: whatever transformers itself loads as a masked or a causal language model)"
    )


def stated_mask(opened: Opened) -> int:
    """The mask token that config.json names. Raises `UserError` where there is none, or none of the vocabulary."""
    mask = opened.agreed(token_id(opened.checkpoint.config, "mask_token_id"))
    if mask is None:
        raise UserError(
            f"{opened.checkpoint.name}: config.json has no mask_token_id, and a diffusion model cannot be denoised "
            "without it; name it: load_model(..., mask_token_id=), --mask-token-id"
        )
    return mask


def named_mask(opened: Opened) -> int:
    """The mask token: the tokenizer's, else the stored configuration's. Raises `UserError` as `stated_mask` does."""
    mask = opened.mask
    if mask is None:
        raise UserError(
            f"{opened.checkpoint.name}: no mask token: neither a tokenizer with one nor mask_token_id in config.json; "
            "name it: load_model(..., mask_token_id=), --mask-token-id"
        )
    return mask


def without_causal_mask(config: PreTrainedConfig) -> PreTrainedConfig:
    """The same configuration, marked for full attention; transformers reads the mark at every forward pass."""
    config.is_causal = False
    return config


def per_layer(config: PreTrainedConfig) -> frozenset[str]:
    """Fields that have a value for each layer (Gemma 4); to ask such a configuration for one value is an error."""
    return frozenset(config.per_layer_attributes or ())


def shape_of(network: PreTrainedModel) -> Shape:
    """The shape of a network's (text) attention, as its configuration says. Raises `UserError` for a network without
    attention heads."""
    config, name = network.config.get_text_config(), type(network).__name__
    # A configuration whose layers differ has one for each of them.
    shapes = [_shape_of(one, name) for one in (list(config.per_layer_config) if per_layer(config) else [config])]
    heads, key_heads, head_dim = (max(sizes) for sizes in zip(*shapes, strict=True))
    return Shape(layers=int(config.num_hidden_layers), heads=heads, kv_heads=key_heads, head_dim=head_dim)


def _shape_of(config: PreTrainedConfig, name: str) -> tuple[int, int, int]:
    """Heads, key heads and the size of a head of one layer."""
    heads = getattr(config, "num_attention_heads", None)
    if type(heads) is not int:
        raise UserError(f"{name} has no attention heads: nothing of it can be watched")
    key_heads = getattr(config, "num_key_value_heads", None) or heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    if type(key_heads) is not int or type(head_dim) is not int:
        raise UserError(
            f"{name}: num_key_value_heads={key_heads!r}, head_dim={head_dim!r}, wanted one whole number each"
        )
    return heads, key_heads, head_dim
