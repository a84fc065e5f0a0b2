"""Prompts: read from JSON lines, checked before any work starts.

One object a line, with one of `prompt` (text), `messages` (a chat: objects with `role` and `content`) or `input_ids`
(token ids), and an `id` (text or integer; the line number if it is left out). Other fields are kept in `extra`.

    {"id": "q1", "prompt": "What is the capital of France?", "answer": "Paris"}
    {"messages": [{"role": "user", "content": "Hello"}]}

A trace stands for its finished texts. Everything is held in memory, which for prompts is little. Where it misleads:
whether a prompt suits a model (its length, its chat template) is only known once the tokenizer is.
"""

import os
import select
import stat
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from sinkscope.decoding.texts import plain_messages
from sinkscope.errors import UserError, refusing, shortened
from sinkscope.families.checkpoint import JSON_NAMES, parse_json
from sinkscope.trace.reading import Trace, open_trace

Content = str | list[dict[str, Any]] | list[int]

_KINDS = ("prompt", "messages", "input_ids")
_LONGEST_LINE = 1 << 24
"""Bytes."""
_PATIENCE = 5
"""Seconds that a pipe may stay without a word before anything came out of it."""


@dataclass(frozen=True)
class Prompt:
    """One prompt: text, chat messages, or token ids. `extra` holds the fields that only its owner understands."""

    id: str
    content: Content
    extra: Mapping[str, object] = field(default_factory=dict)


def text_prompt(text: str) -> list[Prompt]:
    """The list with this text as its only prompt. Raises UserError if it is not valid Unicode text."""
    return [Prompt("1", check_text(text, "the prompt"))]


def read_prompts(path: str | Path, stdin: IO[bytes] | None = None) -> list[Prompt]:
    """Read prompts from the JSON lines file `path`, or from `stdin` (by default standard input) where it is "-"; of a
    trace its finished texts as token ids, prompts included.

    Blank lines are skipped. Raises UserError in one line, naming the file and the line: a file that can't be read or
    holds no prompt, a line that is not UTF-8, not JSON or not an object, none or several of `prompt`, `messages` and
    `input_ids`, a field of the wrong type, an id used twice.
    """
    if str(path) == "-":
        return _read_lines(sys.stdin.buffer if stdin is None else stdin, "standard input")
    refused = f"can't read the prompts {shortened(str(path))}"
    with refusing(refused):
        is_trace = Path(path, "zarr.json").exists()
    if is_trace:
        return _texts_of(open_trace(path))
    with refusing(refused), os.fdopen(_open(Path(path)), "rb") as lines:
        return _read_lines(lines, shortened(str(path)))


def _texts_of(trace: Trace) -> list[Prompt]:
    if not trace.complete_ids:
        raise UserError(f"the trace {trace.path} holds no finished text; record it to its end")
    return [Prompt(one, [int(token) for token in trace[one]["sequence"].values]) for one in trace.complete_ids]


def _open(path: Path) -> int:
    """A descriptor of the file. A pipe that nobody writes to would be waited for without end."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise UserError(f"the prompts {path}: Is a directory; name a file")
        if stat.S_ISFIFO(mode):
            waiting = select.poll()
            waiting.register(descriptor, select.POLLIN)
            if not waiting.poll(1000 * _PATIENCE):
                raise UserError(f"the prompts {path}: nothing came out of this pipe for {_PATIENCE} seconds")
        os.set_blocking(descriptor, True)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _read_lines(lines: IO[bytes], source: str) -> list[Prompt]:
    prompts: list[Prompt] = []
    first_use: dict[str, int] = {}
    for number, line in enumerate(iter(lambda: lines.readline(_LONGEST_LINE), b""), start=1):
        where = f"{source}, line {number}"
        if len(line) == _LONGEST_LINE:
            raise UserError(f"{where} has more than {_LONGEST_LINE >> 20} MiB: expected one JSON object a line")
        text = _decoded(line, where, first=number == 1)
        if not text.strip():
            continue
        prompt = _parse(text, number, where)
        if prompt.id in first_use:
            raise UserError(
                f"{where}: the id {prompt.id!r} is that of line {first_use[prompt.id]} too; ids must differ"
            )
        first_use[prompt.id] = number
        prompts.append(prompt)
    if not prompts:
        raise UserError(f"{source} holds no prompts: expected one JSON object a line")
    return prompts


def _decoded(line: bytes, where: str, *, first: bool) -> str:
    try:
        return line.decode("utf-8-sig" if first else "utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{where} is not UTF-8 (byte {error.start + 1}): save the file as UTF-8") from error


def _parse(text: str, number: int, where: str) -> Prompt:
    record = parse_json(text.rstrip(), where, 'expected one object a line, such as {"prompt": "..."}')
    given = [kind for kind in _KINDS if kind in record]
    if len(given) != 1:
        got = "none" if not given else " and ".join(given)
        raise UserError(f"{where} needs one of prompt, messages and input_ids, got {got}")
    content = _READERS[given[0]](record[given[0]], where)
    name = _id(record["id"], where) if "id" in record else str(number)
    return Prompt(name, content, {key: value for key, value in record.items() if key not in ("id", given[0])})


def _id(value: object, where: str) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        raise UserError(f"{where}: id must be text or an integer, got {_kind(value) if value != '' else 'empty text'}")
    return check_text(str(value), f"{where}: id")


def check_text(value: object, what: str) -> str:
    """The value. Raises UserError if it is not valid Unicode text."""
    if not isinstance(value, str):
        raise UserError(f"{what} must be text, got {_kind(value)}")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        # Half of a surrogate pair: JSON and command lines can carry it, no tokenizer can.
        raise UserError(f"{what} is not valid Unicode text (character {error.start + 1})") from error
    return value


def _messages(value: object, where: str) -> Content:
    if not isinstance(value, list) or not value:
        raise UserError(f"{where}: messages must be a list of messages, got {'none' if value == [] else _kind(value)}")
    messages = plain_messages(value, where)
    for place, message in enumerate(messages, start=1):
        for key in ("role", "content"):
            check_text(message[key], f"{where}: {key} of message {place}")
    return messages


def _input_ids(value: object, where: str) -> Content:
    if not isinstance(value, list):
        raise UserError(f"{where}: input_ids must be a list of token ids, got {_kind(value)}")
    for place, token in enumerate(value, start=1):
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < 1 << 63:
            got = token if isinstance(token, int | float) else _kind(token)
            raise UserError(f"{where}: input_ids must be integers from 0 on, got {got} as number {place}")
    return value


def _kind(value: object) -> str:
    return JSON_NAMES[type(value)]


_READERS = {
    "prompt": lambda value, where: check_text(value, f"{where}: prompt"),
    "messages": _messages,
    "input_ids": _input_ids,
}
