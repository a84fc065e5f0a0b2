"""Between text and token ids: the one place where texts become ids, and ids become texts.

    encode_text(model, "<s>Hello")        # one <s>, whether the tokenizer adds one or not
    decode_text(model, [5, 9, 2, 0, 0])   # what stands before the end of text, without special tokens

Words that a closed vocabulary lacks are refused by name and place instead of being fed as `<unk>`: a model trained on
a small language has never seen its unknown token, so what it makes of one means nothing. Only a family that says so
(`Family.closed_vocabulary`) is checked. Costs a tokenizer's pass or two over each text. Misleads: token ids are taken
as they are, and so is what a chat template adds.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any, Literal

from transformers import PreTrainedTokenizerBase

from sinkscope.decoding.chats import plain_messages
from sinkscope.errors import UserError, refusing
from sinkscope.families import Model

Sides = Literal["both", "before", "none"]

_SHOWN = 60
"""Characters of the text around the word that a message shows."""


def encode_text(model: Model, text: str, sides: Sides = "both") -> list[int]:
    """Token ids of a text, with what the tokenizer puts on these sides of it, unless the text has that already (as a
    chat that is written out does)."""
    tokenizer: Any = tokenizer_of(model)
    with refusing(f"the tokenizer of {model.name} can't encode the text", "give token ids (`input_ids`) instead"):
        plain = [int(token) for token in tokenizer(text, add_special_tokens=False)["input_ids"]]
        if sides == "none":
            return plain
        whole = [int(token) for token in tokenizer(text, add_special_tokens=True)["input_ids"]]
    at = next((at for at in range(len(whole) - len(plain) + 1) if whole[at : at + len(plain)] == plain), None)
    if at is None:
        return whole
    before, behind = whole[:at], whole[at + len(plain) :]
    before = [] if plain[: len(before)] == before else before
    behind = [] if sides == "before" or plain[-len(behind) :] == behind else behind
    return [*before, *plain, *behind]


def decode_text(model: Model, tokens: Sequence[int], *, until_end: bool = True) -> str:
    """The text of token ids up to the first end of text, without the tokenizer's special tokens. Padding follows the
    end, so none is shown. `until_end=False`: all of them, where an end may stand inside a prompt; then special ids that
    only the configuration knows are left out as well."""
    tokenizer: Any = tokenizer_of(model)
    left_out = set(() if until_end else model.family.special_ids)
    ends = model.family.eos_token_ids
    kept = takewhile(lambda token: token not in ends, tokens) if until_end else tokens
    shown = [int(token) for token in kept if token not in left_out]
    with refusing(f"the tokenizer of {model.name} can't decode what was generated", "fetch its files again"):
        return str(tokenizer.decode(shown, skip_special_tokens=True))


def tokenizer_of(model: Model) -> PreTrainedTokenizerBase:
    """The model's tokenizer. Raises `UserError` where there is none."""
    if model.tokenizer is None:
        raise UserError(
            "this model's folder has no tokenizer; give prompts as token ids (`input_ids` in a prompt file)"
        )
    return model.tokenizer


def check_words(model: Model, prompt: Any, which: str) -> None:
    """Raise `UserError` for the first word of a text or a chat that a closed vocabulary lacks. `which`: how the message
    names the prompt."""
    tokenizer = model.tokenizer
    if tokenizer is None or not model.family.closed_vocabulary:
        return
    for where, text in _texts(prompt, which):
        unknown = _first_unknown(tokenizer, text)
        if unknown is not None:
            start, stop = unknown
            raise UserError(
                f"{which} has the word {text[start:stop]!r} at character {start + 1}{where}, which {model.name} has no "
                f"token for; say it in words of its vocabulary: {_around(text, start)}"
            )


def _texts(prompt: Any, which: str) -> Iterator[tuple[str, str]]:
    """Everything written in a prompt, each text with its place in a chat; nothing for token ids."""
    if isinstance(prompt, str):
        yield "", prompt
    elif isinstance(prompt, Sequence) and any(isinstance(message, Mapping) for message in prompt):
        for number, message in enumerate(plain_messages(prompt, which), start=1):
            yield f" of message {number}", message["content"]


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
