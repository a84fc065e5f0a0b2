"""Between text and token ids: the one place where texts become ids, and ids become texts; chats by their template.

    encode_text(model, "<s>Hello")        # one <s>, whether the tokenizer adds one or not
    decode_text(model, [5, 9, 2, 0, 0])   # what stands before the end of text, without special tokens
    write_chat(tokenizer, [{"role": "user", "content": "Hello"}], "the prompt")   # "<|user|>Hello<|assistant|>"

Words that a closed vocabulary lacks are refused by name and place instead of being fed as `<unk>`: a model trained on
a small language has never seen its unknown token, so what it makes of one means nothing. Only a family that says so
(`Family.closed_vocabulary`) is checked.

A chat template is a program that came with the checkpoint. It may refuse a chat, fail, loop for ever or write
gigabytes. So it runs in a child of this process that has seconds and a share of memory, and what it does there is one
line here. Contents may be parts (`{"type": "text", "text": ...}`); a template is given text first, and parts where it
leaves the text out.

Costs a tokenizer's pass or two over each text, and a fork a chat, milliseconds; a system without `fork` runs the
template unguarded. Misleads: token ids are taken as they are, and so is what a chat template adds. A template may also
drop text on purpose.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal

from transformers import PreTrainedTokenizerBase

from sinkscope.errors import UserError, refusing, shortened
from sinkscope.families import Model

Sides = Literal["both", "before", "none"]

_SHOWN, _SHOWN_WORDS = 60, 48
"""Characters of the text around the word that a message shows, and words of the vocabulary."""
_SECONDS = 5
_MEMORY = 1 << 30
"""Bytes that a template may take beyond what the process has."""
_ADDED, _TIMES = 1 << 18, 16
"""A chat written out may have `_TIMES` the characters of its messages, and `_ADDED` more."""

_ADVICE = "change the messages, or give the prompt as text"
_PARTS_AS_THEY_ARE = ("'type': 'text'", '"type": "text"')
"""What a template that expects text makes of parts."""

Message = dict[str, Any]


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
                f"token for: {_around(text, start)}; say it in words of its vocabulary: {_some_words(tokenizer)}"
            )


def _some_words(tokenizer: PreTrainedTokenizerBase) -> str:
    words = sorted({*tokenizer.get_vocab()} - {*tokenizer.all_special_tokens})
    rest = f" and {len(words) - _SHOWN_WORDS} more" if len(words) > _SHOWN_WORDS else ""
    return " ".join(words[:_SHOWN_WORDS]) + rest


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


def plain_messages(messages: Sequence[Any], which: str) -> list[Message]:
    """The messages with their contents as text. Raises `UserError` for what is no message, and for parts that are no
    text. `which`: how an error names the chat."""
    return [_plain(message, f"{which}: message {number}") for number, message in enumerate(messages, start=1)]


def _plain(message: Any, where: str) -> Message:
    if not isinstance(message, Mapping):
        raise UserError(f"{where} is {type(message).__name__}, wanted an object with role and content")
    for key in ("role", "content"):
        if key not in message:
            raise UserError(f"{where} has no {key}")
    role, content = message["role"], message["content"]
    if not isinstance(role, str):
        raise UserError(f"{where}: role must be text, got {shortened(repr(role))}")
    if isinstance(content, Sequence) and not isinstance(content, str):
        content = "".join(_part(part, where) for part in content)
    if not isinstance(content, str):
        raise UserError(f"{where}: content must be text or a list of text parts, got {shortened(repr(content))}")
    return {**message, "role": role, "content": content}


def _part(part: Any, where: str) -> str:
    """The text of one part of a content."""
    if not isinstance(part, Mapping):
        raise UserError(
            f'{where}: a part of a content must be {{"type": "text", "text": ...}}, got {type(part).__name__}'
        )
    kind = part.get("type", "text")
    if kind != "text" or not isinstance(part.get("text"), str):
        raise UserError(f"{where} has a part of the type {shortened(repr(kind))}; only text can be read: leave it out")
    return str(part["text"])


def write_chat(tokenizer: Any, messages: Sequence[Any], which: str, **options: Any) -> str:
    """A chat as text, special tokens included. `options`: of the library's `apply_chat_template`.

    Raises `UserError` for messages that are none, a tokenizer without a template, and whatever the template does.
    """
    plain = plain_messages(messages, which)
    if not plain:
        raise UserError(f"{which} is a chat without messages; give at least one")
    if tokenizer.chat_template is None and options.get("chat_template") is None:
        raise UserError("this model's tokenizer has no chat template; give the prompt as text instead of messages")
    options = {"add_generation_prompt": True, **options, "tokenize": False}
    parts = [{**message, "content": [{"type": "text", "text": message["content"]}]} for message in plain]
    what = f"{which}: the model's chat template does not take this chat"
    most = _ADDED + _TIMES * sum(len(repr(message)) for message in plain)
    with refusing(what, _ADVICE):
        return _bounded(lambda: _whole(tokenizer, (plain, parts), options, what), most)


def _whole(tokenizer: Any, forms: Sequence[list[Message]], options: Mapping[str, Any], what: str) -> str:
    """The first form of a chat that the template writes the last message of; the first form where it writes none."""
    said, first = forms[0][-1]["content"].strip(), None
    for form in forms:
        try:
            with refusing(what, _ADVICE):
                written = str(tokenizer.apply_chat_template(form, **options))
        except UserError:
            if first is None:
                raise
            break
        listed = any(mark in written and mark not in said for mark in _PARTS_AS_THEY_ARE)
        if said in written and not listed:
            return written
        first = written if first is None else first
    return str(first)


def _bounded(work: Callable[[], str], most: int) -> str:
    """The result of `work` in a child process with limits of time, memory and characters. Raises `UserError` or
    `ValueError` with what went wrong there."""
    if not hasattr(os, "fork"):
        return work()
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of threads, which the child never asks for anything
        child = os.fork()
    if child == 0:
        _answer(work, most, writing)
    os.close(writing)
    try:
        answer = _read(reading)
    finally:
        os.close(reading)
        with suppress(OSError):  # of a process that lets nobody wait for children
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    if not answer:
        raise ValueError(f"it took more memory than {_MEMORY >> 20} MiB, or crashed")
    fine, text = json.loads(answer)
    if not fine:
        raise UserError(text)
    return str(text)


def _answer(work: Callable[[], str], most: int, writing: int) -> None:
    """The child's part. It never returns, and touches no library but the template's."""
    try:
        gc.disable()  # what the parent would free, devices included, is none of the child's concern
        _limit()
        try:
            text = work()
            too_long = f"the model's chat template wrote more than {most} characters; {_ADVICE}"
            answer = [False, too_long] if len(text) > most else [True, text]
        except UserError as error:
            answer = [False, str(error)]
        with open(writing, "wb") as pipe:
            pipe.write(json.dumps(answer).encode())
    finally:
        os._exit(0)


def _limit() -> None:
    import resource  # absent where there is no fork

    with suppress(OSError, ValueError):  # narrower limits are in force, or only Linux tells and keeps to this one
        resource.setrlimit(resource.RLIMIT_CPU, (_SECONDS + 1, _SECONDS + 1))
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        most = pages * resource.getpagesize() + _MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _read(reading: int) -> bytes:
    """All that the child writes. Raises `ValueError` where it takes too long."""
    end, found = time.monotonic() + _SECONDS, bytearray()
    while True:
        ready, _, _ = select.select([reading], [], [], max(0.0, end - time.monotonic()))
        if not ready:
            raise ValueError(f"it was not done after {_SECONDS} seconds")
        piece = os.read(reading, 1 << 20)
        if not piece:
            return bytes(found)
        found += piece
