"""Where a generated answer ends: at an end-of-text token, or before a string that the task names.

Misleads: strings are looked for in decoded text, special tokens by their id, since decoding leaves them out.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Any

from sinkscope.decoding.texts import decode_text
from sinkscope.families import Model

_MARGIN = 8
"""Tokens looked at beyond as many as the longest string has bytes: special ones decode to nothing."""


class Stops:
    """The ends of answers of one model and one task."""

    def __init__(self, model: Model, until: Sequence[str]) -> None:
        tokenizer: Any = model.tokenizer
        special = {tokenizer.convert_ids_to_tokens(index): index for index in model.family.special_ids}
        self._model = model
        self._ends = {*model.family.eos_token_ids, *(special[text] for text in until if text in special)}
        self._texts = [text for text in until if text not in special]
        self._tail = max((len(text.encode()) for text in self._texts), default=0) + _MARGIN

    def text(self, tokens: Sequence[int]) -> str:
        """The answer in generated tokens."""
        answer = self._decode(list(takewhile(lambda token: token not in self._ends, tokens)))
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
        return bool(self._texts) and any(text in self._decode(tokens) for text in self._texts)

    def _decode(self, tokens: Sequence[int]) -> str:
        return decode_text(self._model, tokens)
