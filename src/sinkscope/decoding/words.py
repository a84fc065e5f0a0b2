"""Words that a closed vocabulary lacks: refused by name and place instead of being fed as `<unk>`.

A model trained on a small language has never seen its unknown token, so what it makes of one means nothing. Only a
family that says so (`Family.closed_vocabulary`) is checked; others may know their unknown token. Costs one more pass
of the tokenizer over each prompt. Misleads: token ids are taken as they are, and so is what a chat template adds.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from sinkscope.errors import UserError
from sinkscope.families import Model

_SHOWN = 60
"""Characters of the text around the word that a message shows."""


def check_words(model: Model, prompt: Any, which: str) -> None:
    """Raise `UserError` for the first word of a text or a chat that a closed vocabulary lacks. `which`: how the message
    names the prompt."""
    tokenizer = model.tokenizer
    if tokenizer is None or not model.family.closed_vocabulary:
        return
    for where, text in _texts(prompt):
        unknown = _first_unknown(tokenizer, text)
        if unknown is not None:
            start, stop = unknown
            raise UserError(
                f"{which} has the word {text[start:stop]!r} at character {start + 1}{where}, which {model.name} has no "
                f"token for; say it in words of its vocabulary: {_around(text, start)}"
            )


def _texts(prompt: Any) -> Iterator[tuple[str, str]]:
    """Everything written in a prompt, each text with its place in a chat; nothing for token ids."""
    if isinstance(prompt, str):
        yield "", prompt
    elif isinstance(prompt, Sequence):
        for number, message in enumerate(prompt, start=1):
            if isinstance(message, Mapping):
                yield f" of message {number}", str(message.get("content", ""))


def _first_unknown(tokenizer: PreTrainedTokenizerBase, text: str) -> tuple[int, int] | None:
    """Where the first piece of text that became the unknown token begins and ends, in characters."""
    encoded: Any = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    for token, (start, stop) in zip(encoded["input_ids"], encoded["offset_mapping"], strict=True):
        if token == tokenizer.unk_token_id:
            return start, stop
    return None


def _around(text: str, start: int) -> str:
    """The text around a place, shortened, in quotes."""
    first = max(0, start - _SHOWN // 2)
    last = first + _SHOWN
    return repr(f"{'...' if first else ''}{text[first:last]}{'...' if last < len(text) else ''}")
