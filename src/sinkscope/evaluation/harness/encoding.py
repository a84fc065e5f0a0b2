"""From the harness's texts to token ids: prompts, pairs of context and continuation, texts to be rolled over.

The harness writes chats out as text, special tokens included, so a text that begins with the beginning-of-text token
gets no second one. A pair is encoded together and cut at the length of the context alone, as the harness does; what a
tokenizer puts at the end of a text (`[SEP]`) is left out of pairs.

Misleads: where the last token of a context and the first of a continuation would be one, the cut is not where the text
is. Blanks at the end of a context count as the continuation's.
"""

from __future__ import annotations

from functools import cached_property

from sinkscope.decoding.texts import check_words, encode_text, tokenizer_of
from sinkscope.errors import UserError
from sinkscope.families import Model

_PROBE = "a"


class Encoder:
    """Encodes for one model. Raises `UserError` for a model without a tokenizer."""

    def __init__(self, model: Model) -> None:
        if model.tokenizer is None:
            raise UserError(f"{model.name} has no tokenizer, and the harness's tasks are text; add one to its folder")
        self._model = model

    def prompt(self, text: str, which: str) -> list[int]:
        """Token ids of a prompt. `which`: how a message names it. Raises `UserError` for none, and unknown words."""
        check_words(self._model, text, which)
        found = encode_text(self._model, text)
        if not found:
            raise UserError(f"{which} is empty; the model needs at least one token")
        return found

    def pair(self, context: str, continuation: str, which: str) -> tuple[list[int], list[int]]:
        """Token ids of a context, at least one, and of what follows it."""
        kept = context.rstrip()
        continuation, context = context[len(kept) :] + continuation, kept
        check_words(self._model, context + continuation, which)
        if context:
            given = self._body(context)
            scored = self._body(context + continuation)[len(given) :]
        else:
            given, scored = self.start, self._plain(continuation)
        if not scored:
            raise UserError(f"{which} has a continuation without a token, {continuation!r}; mend the task")
        return given, scored

    def text(self, text: str, which: str) -> list[int]:
        """Token ids of a text alone, to be scored after `start`."""
        check_words(self._model, text, which)
        return self._plain(text)

    @cached_property
    def start(self) -> list[int]:
        """What a text without a context follows: what the tokenizer puts in front of one, or the beginning of text, or
        the end of one."""
        probe, plain = encode_text(self._model, _PROBE, "before"), self._plain(_PROBE)
        if len(probe) > len(plain):
            return probe[: len(probe) - len(plain)]
        for token in (tokenizer_of(self._model).bos_token_id, *self._model.family.eos_token_ids):
            if token is not None:
                return [int(token)]
        raise UserError(f"{self._model.name} has no token that begins a text, which one without a context needs")

    def _body(self, text: str) -> list[int]:
        """Token ids without what stands behind the text."""
        return encode_text(self._model, text, "before")

    def _plain(self, text: str) -> list[int]:
        return encode_text(self._model, text, "none")
