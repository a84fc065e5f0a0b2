"""From what a user calls a prompt to a left-padded canvas of token ids, with every check that needs the model.

A prompt is a string, a chat (list of messages), or token ids; several of them make a batch. Left padding keeps the
generated part of all rows in the same columns; positions are counted from the first real token, so a padded row sees
what it would see alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, TypeAlias

import numpy as np
import torch

from sinkscope.decoding.coupling import check_padding
from sinkscope.decoding.texts import check_words, encode_text, tokenizer_of, write_chat
from sinkscope.errors import UserError
from sinkscope.families import Model

Prompts: TypeAlias = str | Mapping[str, Any] | torch.Tensor | np.ndarray[Any, Any] | Sequence[Any]
"""A string, strings, a chat, chats, token ids, lists of token ids, a tensor or array (batch, position), or a
tokenizer's output (`input_ids` and `attention_mask`)."""


MOST_COLUMNS = 1 << 24
"""No text is longer, also where a network names no limit: what is counted by column would not fit in memory."""


@dataclass(frozen=True, kw_only=True)
class Canvas:
    """Token ids and which of them are real. The first `prompt_length` columns hold the prompts, padded on the left."""

    tokens: torch.Tensor  # (batch, position)
    real: torch.Tensor  # (batch, position) boolean
    prompt_length: int
    places: torch.Tensor | None = None  # (batch, position) in its text, where columns stand in another order

    @property
    def padded(self) -> bool:
        return not bool(self.real.all())

    def positions(self) -> torch.Tensor:
        """Position of each column in its row, counted from the first real token; (batch, position)."""
        return (self.real.long().cumsum(-1) - 1).clamp(min=0) if self.places is None else self.places


def doubled(canvas: Canvas) -> Canvas:
    """The canvas twice over: its rows, then the same rows again."""
    places = None if canvas.places is None else canvas.places.repeat(2, 1)
    tokens, real = canvas.tokens.repeat(2, 1), canvas.real.repeat(2, 1)
    return Canvas(tokens=tokens, real=real, prompt_length=canvas.prompt_length, places=places)


def after_prefix(canvas: Canvas, prefix: Sequence[int]) -> Canvas:
    """The canvas with the same tokens in front of every row; padding then lies between them and shorter prompts."""
    front = torch.tensor(prefix, dtype=torch.long, device=canvas.tokens.device).expand(len(canvas.tokens), -1)
    return Canvas(
        tokens=torch.cat([front, canvas.tokens], dim=1),
        real=torch.cat([torch.ones_like(front, dtype=torch.bool), canvas.real], dim=1),
        prompt_length=canvas.prompt_length + len(prefix),
    )


def encode_prompts(model: Model, prompts: Prompts, *, continuing: bool = False) -> list[list[int]]:
    """Token ids of each prompt. continuing: it follows other tokens, so no special ones are put before it.

    Raises `UserError` for empty prompts, ids outside the vocabulary, words that a closed vocabulary lacks, and text
    without a tokenizer.
    """
    given = split_prompts(prompts)
    if not given:
        raise UserError("no prompts were given")
    for number, prompt in enumerate(given):
        check_words(model, prompt, which_prompt(number, given))
    encoded = [_encode(model, prompt, which_prompt(number, given), continuing) for number, prompt in enumerate(given)]
    vocabulary = vocabulary_size(model)
    for number, tokens in enumerate(encoded):
        which = which_prompt(number, encoded)
        if not tokens:
            raise UserError(f"{which} is empty; give at least one token")
        wrong = next((token for token in tokens if not 0 <= token < vocabulary), None)
        if wrong is not None:
            raise UserError(f"{which} holds token id {wrong}, the model's vocabulary has ids 0 to {vocabulary - 1}")
    return encoded


def which_prompt(number: int, prompts: Sequence[Any]) -> str:
    """How a message names one of these prompts."""
    return "the prompt" if len(prompts) == 1 else f"prompt {number}"


def vocabulary_size(model: Model) -> int:
    """Number of token ids that the network has embeddings for."""
    weight = model.network.get_input_embeddings().weight
    assert isinstance(weight, torch.Tensor)
    return weight.shape[0]


def check_token_ids(model: Model, name: str, ids: Sequence[int], never: Sequence[int] = ()) -> None:
    """Refuse ids outside the vocabulary, and ids that with those in `never` leave nothing to predict."""
    vocabulary = vocabulary_size(model)
    wrong = [token for token in ids if not 0 <= token < vocabulary]
    if wrong:
        raise UserError(f"{name} names token id {wrong[0]}, the model's vocabulary has ids 0 to {vocabulary - 1}")
    if len({*ids, *never}) >= vocabulary:
        raise UserError(f"{name} leaves no token to predict; name fewer of the {vocabulary} ids")


def mask_token(model: Model, unfit: str) -> int:
    """The mask token's id. Raises `UserError` where there is none; `unfit`: what a message says of a model that is
    autoregressive."""
    if not model.family.bidirectional:
        raise UserError(f"{model.name} ({model.family.name}) {unfit}")
    if model.family.renoises:
        raise UserError(
            f"{model.name} ({model.family.name}) has no mask token, its noise is random tokens: it can generate and be "
            "traced and masked, what fills masks can't be done with it"
        )
    if model.family.mask_token_id is None:
        raise UserError(f"no mask token is known for {model.name}; add a tokenizer to its folder that names one")
    return model.family.mask_token_id


def check_autoregressive(model: Model, instead: str) -> None:
    """Raise `UserError` for a model that sees in both directions. `instead`: what serves one that fills masks."""
    if model.family.renoises:
        raise UserError(
            f"{model.name} ({model.family.name}) refines random tokens and has no likelihoods; generate from it "
            "(`denoise` and Renoising settings), or take a task with exact answers"
        )
    if model.family.bidirectional:
        raise UserError(f"{model.name} ({model.family.name}) sees in both directions; use {instead}")


def mask_text(model: Model) -> str:
    """The mask token as a user writes it: its text, and its id where there is no tokenizer."""
    mask = model.family.mask_token_id
    if model.tokenizer is None or mask is None:
        return f"the mask token (id {mask})"
    return f"the mask token {model.tokenizer.convert_ids_to_tokens(mask)}"


def check_context(model: Model, prompt_length: int, new_tokens: int, name: str) -> None:
    """Refuse what does not fit the model's context. `name`: the setting that asks for `new_tokens`."""
    total, context = prompt_length + new_tokens, min(model.family.max_length, MOST_COLUMNS)
    if total > context:
        raise UserError(
            f"a prompt of {prompt_length} tokens and {name} {new_tokens} make {total}, the context is {context}; "
            f"shorten it or lower {name}"
        )


def lay_out(model: Model, encoded: Sequence[Sequence[int]], new_tokens: int, fill: int) -> Canvas:
    """A canvas on the model's device: prompts padded on the left, then `new_tokens` columns of `fill`.

    Raises `UserError` for a network whose rows would change one another.
    """
    lengths = [len(tokens) for tokens in encoded]
    longest = max(lengths)
    check_padding(model, min(lengths), longest, new_tokens)
    tokens = torch.full((len(encoded), longest + new_tokens), fill, dtype=torch.long)
    real = torch.ones_like(tokens, dtype=torch.bool)
    for row, prompt in enumerate(encoded):
        padding = longest - len(prompt)
        tokens[row, :padding] = model.family.pad_token_id
        tokens[row, padding:longest] = torch.tensor(prompt, dtype=torch.long)
        real[row, :padding] = False
    return Canvas(tokens=tokens.to(model.device), real=real.to(model.device), prompt_length=longest)


def split_prompts(prompts: Prompts) -> list[Any]:
    """Single prompts, each a string, a list of messages or a list of token ids, from whatever was given."""
    if isinstance(prompts, str):
        return [prompts]
    if isinstance(prompts, Mapping):
        return _from_encoding(prompts)
    if isinstance(prompts, torch.Tensor | np.ndarray):
        return _from_tensor(torch.as_tensor(prompts), None)
    if not isinstance(prompts, Sequence):
        raise UserError(f"prompts must be text, messages, token ids or a list of those, got {type(prompts).__name__}")
    if prompts and isinstance(prompts[0], Integral | Mapping):  # token ids, or the messages of one chat
        return [prompts]
    return list(prompts)


def _from_encoding(encoding: Mapping[str, Any]) -> list[list[int]]:
    """Rows of a tokenizer's output, padded or of unequal length."""
    if "input_ids" not in encoding:
        raise UserError(
            f"a mapping of prompts is a tokenizer's output with input_ids, got {', '.join(map(str, encoding))}; the "
            "messages of a chat are a list"
        )
    ids, mask = encoding["input_ids"], encoding.get("attention_mask")
    if isinstance(ids, list) and len({len(row) for row in ids if isinstance(row, list)}) > 1:  # not padded
        masks = [None] * len(ids) if mask is None else mask
        return [_from_tensor(torch.as_tensor(row), one)[0] for row, one in zip(ids, masks, strict=True)]
    return _from_tensor(torch.as_tensor(ids), mask)


def _from_tensor(tokens: torch.Tensor, mask: object) -> list[list[int]]:
    """Rows of (batch, position) token ids, or one row, without what the mask calls padding."""
    if tokens.ndim not in (1, 2) or tokens.is_floating_point():
        raise UserError(f"token ids must be whole numbers (batch, position), got {tokens.dtype} {tuple(tokens.shape)}")
    tokens = tokens.unsqueeze(0) if tokens.ndim == 1 else tokens
    keep = torch.ones_like(tokens) if mask is None else torch.as_tensor(mask)
    if keep.numel() != tokens.numel():
        raise UserError(f"attention_mask {tuple(keep.shape)} does not fit input_ids {tuple(tokens.shape)}")
    keep = keep.reshape(tokens.shape)
    return [row[kept].tolist() for row, kept in zip(tokens, keep.bool(), strict=True)]


def _encode(model: Model, prompt: Any, which: str, continuing: bool) -> list[int]:
    if isinstance(prompt, torch.Tensor | np.ndarray):
        return _from_tensor(torch.as_tensor(prompt).flatten(), None)[0]
    if not isinstance(prompt, str | Sequence):
        raise UserError(f"a prompt must be text, messages or token ids, got {type(prompt).__name__}")
    if not isinstance(prompt, str) and all(isinstance(token, Integral) for token in prompt):
        return [int(token) for token in prompt]
    if isinstance(prompt, str):
        return encode_text(model, prompt, "none" if continuing else "both")
    if not all(isinstance(message, Mapping) for message in prompt):
        raise UserError("a chat is a list of messages with `role` and `content`, this list holds something else")
    if continuing:
        raise UserError("a chat can't go on after a prefix; give text or token ids, or the chat without the prefix")
    return encode_text(model, write_chat(tokenizer_of(model), prompt, which), "none")
