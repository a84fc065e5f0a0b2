"""What a task asks: its texts as token ids, its `generation_kwargs` as settings, and where its answers end.

The harness writes chats out as text, special tokens included, so a text that begins with the beginning-of-text token
gets no second one. What `model_args` (or a preset) say wins over what the task says, and that over the family's own
way. Of a task count `until`, the number of tokens, `do_sample`, `temperature`, `top_p` and `top_k`; anything else is
refused.

Misleads: most tasks ask for greedy decoding, so a temperature in a preset overrules the task. A task that names no
number of tokens gets 256 from an autoregressive model, as the harness's own models give it, but the family's canvas
from a diffusion model. Where the last token of a context and the first of a continuation would be one, a pair is not
cut where its text is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from itertools import takewhile
from typing import Any

from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from sinkscope.decoding import Decoding, Denoising, Renoising, default_settings
from sinkscope.decoding.settings import KINDS, Settings
from sinkscope.decoding.texts import check_words, decode_text, encode_text, tokenizer_of
from sinkscope.errors import UserError
from sinkscope.families import Model

TOKENS = 256
"""Of an autoregressive model where nobody says how many: the harness's default."""
_PROBE = "a"
_MARGIN = 8
"""Tokens looked at beyond as many as the longest string has bytes: special ones decode to nothing."""


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Token ids to be read and token ids to be scored after them, at least one of each."""

    given: list[int]
    scored: list[int]


class Encoder:
    """Token ids of texts, for one model. Raises `UserError` for a model without a tokenizer."""

    def __init__(self, model: Model) -> None:
        if model.tokenizer is None:
            raise UserError(f"{model.name} has no tokenizer, and the harness's tasks are text; add one to its folder")
        self._model = model

    def prompt(self, text: str, which: str) -> list[int]:
        """Of a prompt. `which`: how a message names it. Raises `UserError` for none, and for unknown words."""
        check_words(self._model, text, which)
        found = encode_text(self._model, text)
        if not found:
            raise UserError(f"{which} is empty; the model needs at least one token")
        return found

    def pair(self, context: str, continuation: str, which: str) -> Pair:
        """A context and what follows it: encoded together and cut at the length of the context alone, as the harness
        does. Blanks at the end of the context count as the continuation's; what a tokenizer puts at the end of a text
        (`[SEP]`) is left out."""
        kept = context.rstrip()
        continuation, context = context[len(kept) :] + continuation, kept
        check_words(self._model, context + continuation, which)
        if context:
            given = encode_text(self._model, context, "before")
            scored = encode_text(self._model, context + continuation, "before")[len(given) :]
        else:
            given, scored = self.start, encode_text(self._model, continuation, "none")
        if not scored:
            raise UserError(f"{which} has a continuation without a token, {continuation!r}; mend the task")
        return Pair(given=given, scored=scored)

    def windows(self, text: str, which: str) -> list[Pair]:
        """A text alone, scored after `start`: pairs within the context."""
        check_words(self._model, text, which)
        return windows(encode_text(self._model, text, "none"), self.start, self._model.family.max_length)

    @cached_property
    def start(self) -> list[int]:
        """What a text without a context follows: what the tokenizer puts in front of one, or the beginning of text, or
        the end of one."""
        probe, plain = (encode_text(self._model, _PROBE, special) for special in ("before", "none"))
        if len(probe) > len(plain):
            return probe[: len(probe) - len(plain)]
        for token in (tokenizer_of(self._model).bos_token_id, *self._model.family.eos_token_ids):
            if token is not None:
                return [int(token)]
        raise UserError(f"{self._model.name} has no token that begins a text, which one without a context needs")


def windows(tokens: Sequence[int], start: Sequence[int], context: int) -> list[Pair]:
    """A text as pairs that score each of its tokens once, as the harness does, in windows of at most `context` tokens.

    start: what the first token follows; its last token counts.
    """
    rolled = get_rolling_token_windows(list(tokens), start[-1], context - len(start), 1)
    pairs = [Pair(given=given, scored=scored) for given, scored in map(make_disjoint_window, rolled)]
    return [Pair(given=[*start[:-1], *one.given], scored=one.scored) for one in pairs[:1]] + pairs[1:]


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What a task asks for. until: where an answer ends. sampling: fields of either settings class; empty for greedy
    decoding."""

    until: tuple[str, ...]
    tokens: int | None
    sampling: Mapping[str, Any] = field(default_factory=dict)


def read_wish(asked: Mapping[str, Any], task: str) -> Wish:
    """A request's `generation_kwargs`. Raises `UserError` for what has no counterpart here."""
    named: dict[str, Any] = dict(normalize_gen_kwargs(dict(asked), default_max_gen_toks=0))
    until, tokens = named.pop("until"), named.pop("max_gen_toks")
    sampled, temperature = named.pop("do_sample"), float(named.pop("temperature", 0.0))
    chosen = {"top_p": named.pop("top_p", None), "top_k": named.pop("top_k", None) or None}
    if named.pop("num_beams", 1) != 1 or named:
        wrong = next(iter(named), "num_beams")
        raise UserError(f"task {task} asks for {wrong} in its generation_kwargs, which sinkscope has not; take it out")
    sampling = {"temperature": temperature, **chosen} if sampled and temperature > 0 else {}
    return Wish(until=tuple(text for text in until if text), tokens=tokens or None, sampling=sampling)


def check_kind(decoding: Mapping[str, Any], kind: type[Settings], name: str) -> None:
    """Raise `UserError` for settings that only other kinds of model have. name: of the model."""
    known = {one.name for one in fields(kind)} - {"seed"}
    foreign = sorted(set(decoding) - known)
    if foreign:
        said = KINDS[kind]
        raise UserError(f"{name} is {said} model, which has no {foreign[0]}; it has {', '.join(sorted(known))}")


def settings_for(model: Model, given: Mapping[str, Any], wish: Wish, seed: int) -> Settings:
    """The settings of a request. given: fields of the settings that `model_args` name.

    A length other than the family's goes with blocks no longer than it and one position a step, unless said. A task's
    number of tokens is rounded up to whole blocks. Raises `UserError` where settings don't fit together.
    """
    own = default_settings(model)
    values: dict[str, Any] = {**vars(own), "temperature": 0.0, **wish.sampling, **given, "seed": seed}
    if isinstance(own, Decoding):
        return Decoding(**{**values, "max_new_tokens": given.get("max_new_tokens", wish.tokens or TOKENS)})
    length = given.get("gen_length", wish.tokens)
    if isinstance(own, Renoising):
        del values["temperature"]
        return Renoising(**{**values, "gen_length": length or own.gen_length})
    if length is None:
        return Denoising(**values)
    if "block_length" not in given and own.block_length is not None and length > 0:
        values["block_length"] = min(own.block_length, length)
    block = values["block_length"]
    if "gen_length" not in given and block is not None:
        length = -(-length // block) * block
    return Denoising(**{**values, "gen_length": length, "steps": given.get("steps")})


class Stops:
    """The ends of answers of one model and one task: an end-of-text token, or a string that the task names.

    Misleads: strings are looked for in decoded text, special tokens by their id, since decoding leaves them out.
    """

    def __init__(self, model: Model, until: Sequence[str]) -> None:
        tokenizer: Any = model.tokenizer
        special = {tokenizer.convert_ids_to_tokens(index): index for index in model.family.special_ids}
        self._model = model
        self._ends = {*model.family.eos_token_ids, *(special[text] for text in until if text in special)}
        self._texts = [text for text in until if text not in special]
        self._tail = max((len(text.encode()) for text in self._texts), default=0) + _MARGIN

    def text(self, tokens: Sequence[int]) -> str:
        """The answer in generated tokens."""
        answer = decode_text(self._model, list(takewhile(lambda token: token not in self._ends, tokens)))
        for text in self._texts:
            answer = answer.partition(text)[0]
        return answer

    def reached(self, tokens: Sequence[int]) -> bool:
        """Whether an answer so far, at least one token, is at its end; asked after every token."""
        if tokens[-1] in self._ends:
            return True
        # The tail alone decodes fast, but its first characters may differ from those of the whole.
        return self._holds_one(tokens[-self._tail :]) and self._holds_one(tokens)

    def _holds_one(self, tokens: Sequence[int]) -> bool:
        return bool(self._texts) and any(text in decode_text(self._model, tokens) for text in self._texts)
