"""Tasks: questions with exact answers, when an answer is right, and where their examples come from.

    examples(find_task("copy"), 3)      # [Example(prompt='Copy the list: ...', answer=...), ...]
    read_questions(Path("my.jsonl"))    # a task of one's own

The tasks of the little language have held-out problems only. Of a problem with several questions only the first is
asked. Texts are told in 24 tokens up to the number allowed, so that their lengths vary; only passkey and look-up fill
them. The same task, seed and number give the same examples on every machine; fewer of them are the first of more.

White space does not count in an answer, because a tokenizer with one token a digit may say "12" as "1 2". Misleads: an
answer that says more than was asked is wrong for `exact`, and right for the others if its number is; `last_number`
looks at nothing but the number that the answer ends with, so wrong steps with a right end are right. A passkey has
three digits, of which about a hundred values are held out; its prompts differ by the filler around it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Any

from sinkscope.discovery import Names
from sinkscope.errors import UserError
from sinkscope.families import Model
from sinkscope.files import parse_json, read_regular
from sinkscope.language import MAKERS, prompt_text
from sinkscope.language.problems import Maker, draw

MAX_EXAMPLE_TOKENS = 64
"""Tokens that a problem's text may take, if nobody says otherwise."""
_LEAST_ROOM = 24
"""The shortest texts are told in so many tokens, or in all the room there is if that is less."""
_PATIENCE = 2000
"""So many repetitions in a row mean that there is nothing new to come."""
_FIELDS = frozenset({"id", "prompt", "answer", "context", "check", "gen_length"})
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")

AnswerCheck = Callable[[str, str], float]
"""(expected, got) -> whether it is right, or which share of it; `got` is the generated text up to its end."""


@dataclass(frozen=True)
class Example:
    """One question and its answer."""

    prompt: str
    answer: str
    context: str = field(default="", repr=False)
    """Head of the prompt, up to where the question begins; empty where the question is all there is."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """A kind of question. It is one small unit, filed in `TASKS`."""

    name: str
    summary: str
    """One line."""
    gen_length: int
    """Tokens of the canvas that its answers are generated in: the longest answer with its end, rounded up to a
    multiple of 4."""
    stream: Callable[[Random, int], Iterator[Example]]
    """Held-out examples in at most about so many tokens; what comes follows from the random generator alone. It may go
    on for ever, and may repeat itself."""
    is_right: AnswerCheck
    size: int | None = None
    """Number of examples, where the stream ends."""
    in_parts: bool = False
    """Whether an answer may be right in part."""
    check: Callable[[Model], None] = lambda _: None
    """Raises `UserError` for a model that the questions make no sense to."""


def exact(expected: str, got: str) -> bool:
    """The same characters, white space aside."""
    return _squeezed(expected) == _squeezed(got)


def last_number(expected: str, got: str) -> bool:
    """The same last number after the last `=`, as in GSM8K, where the steps before the result do not count.

    Without a `=` the last number of the whole text counts; a text without a number is wrong.
    """
    number = _result(got)
    return number is not None and number == _result(expected)


def first_number(expected: str, got: str) -> bool:
    """The same first number: what a model says after it does not count, since a language model talks on.

    Spaces are no end of a number, line breaks are.
    """
    numbers = _NUMBER.findall(got.replace(" ", ""))
    return bool(numbers) and numbers[0] == _squeezed(expected)


CHECKS: Mapping[str, AnswerCheck] = MappingProxyType(
    {"exact": exact, "first-number": first_number, "last-number": last_number}
)
"""By the name that a file of questions gives."""


def _squeezed(text: str) -> str:
    return "".join(text.split())


def _result(text: str) -> str | None:
    numbers = _NUMBER.findall(_squeezed(text).rpartition("=")[2])
    return numbers[-1] if numbers else None


def _held_out(maker: Maker, random: Random, room: int) -> Iterator[Example]:
    while True:
        problem = draw(maker, random, random.randint(min(_LEAST_ROOM, room), room), "test")
        yield Example(prompt_text(problem), problem.questions[0][1], problem.context)


def _synthetic(name: str, gen_length: int, summary: str, is_right: AnswerCheck = exact) -> Task:
    stream = partial(_held_out, MAKERS[name])
    return Task(name=name, summary=summary, gen_length=gen_length, stream=stream, is_right=is_right)


synthetic_tasks: tuple[Task, ...] = (
    _synthetic("arithmetic-1", 4, "a story with one step; the result counts", last_number),
    _synthetic("arithmetic-2", 16, "a story with two steps; the result counts", last_number),
    _synthetic("arithmetic-3", 24, "a story with three steps; the result counts", last_number),
    _synthetic("passkey", 4, "three digits somewhere in a plain story; the first number counts", first_number),
    _synthetic("lookup", 4, "the value of one of several keys"),
    _synthetic("tracking", 4, "who has an object that changed hands"),
    _synthetic("copy", 8, "a list of 3 to 6 letters as it is"),
    _synthetic("reverse", 8, "a list of 3 to 6 letters from its end"),
    _synthetic("sort", 8, "a list of 3 to 6 letters in the order of the alphabet"),
)
"""Of the little language."""
LITTLE: tuple[str, ...] = tuple(task.name for task in synthetic_tasks)
"""Their names."""
TASKS: Names[Task] = Names("task")
for _task in synthetic_tasks:
    TASKS.add(_task.name, _task)
find_task = TASKS.find


def examples(task: Task, n: int, seed: int = 0, max_example_tokens: int = MAX_EXAMPLE_TOKENS) -> list[Example]:
    """`n` held-out examples with distinct prompts whose texts take at most about `max_example_tokens`.

    Raises `UserError` where a number is less than 1, and where the task has fewer than n distinct prompts so short.
    """
    for name, value in (("n", n), ("max_example_tokens", max_example_tokens)):
        check_count(name, value)
    found: dict[str, Example] = {}
    repeated = 0
    for example in task.stream(Random(f"{task.name} {seed}"), max_example_tokens):
        repeated = repeated + 1 if example.prompt in found else 0
        if repeated == _PATIENCE:
            break
        found.setdefault(example.prompt, example)
        if len(found) == n:
            return list(found.values())
    raise UserError(
        f"{task.name} has only {len(found)} different prompts of at most {max_example_tokens} tokens, {n} were asked "
        "for; lower n, or allow more tokens"
    )


def digest(task: Task, drawn: Sequence[Example]) -> str:
    """What is asked and when an answer is right: a file or a plugin with them may have been edited since."""
    code = getattr(task.is_right, "__code__", None)
    right = repr(task.is_right) if code is None else [code.co_code.hex(), *map(str, code.co_names)]
    constants = [] if code is None else [repr(one) for one in code.co_consts if not hasattr(one, "co_code")]
    told = json.dumps([right, constants, *([one.prompt, one.answer, one.context] for one in drawn)])
    return hashlib.sha256(told.encode()).hexdigest()[:32]


def check_count(name: str, value: int) -> None:
    """Refuse what is no whole number of at least 1."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UserError(f"{name} must be a whole number of at least 1, got {value!r}")


def read_questions(file: Path) -> Task:
    """A task from a file with one JSON object a line: `prompt` and `answer`, and if they are to be had `context` (the
    head of the prompt, which may be compressed alone), `check` (of `CHECKS`; exact) and `gen_length` (64).

    The last two are those of the first line. Raises `UserError`, naming the line, for what is none.
    """
    try:
        lines = {
            number: line
            for number, line in enumerate(read_regular(file).decode("utf-8").split("\n"), 1)
            if line.strip()
        }
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        raise UserError(f"{str(file)!r}: {reason}; name a file with one question a line, as JSON") from error
    asked = [_question(file, number, line) for number, line in lines.items()]
    if not asked:
        raise UserError(f"{file} holds no question; write one a line")
    first, told = next(iter(lines)), parse_json(next(iter(lines.values())).encode())
    for number, line in lines.items():
        for name in ("check", "gen_length"):
            other = parse_json(line.encode())
            if name in other and other[name] != told.get(name):
                raise UserError(f"{file}, line {number}: {name} is that of all questions; say it in line {first}")
    check, length = told.get("check", "exact"), told.get("gen_length", 64)
    if not isinstance(check, str) or check not in CHECKS:
        raise UserError(f"{file}: check must be one of {', '.join(CHECKS)}, got {check!r}")
    check_count(f"{file}: gen_length", length)
    return Task(
        name=file.name,
        summary=f"{len(asked)} questions of {file.name}",
        gen_length=length,
        stream=lambda _random, _room: iter(asked),
        is_right=CHECKS[check],
        size=len({one.prompt for one in asked}),
    )


def _question(file: Path, number: int, line: str) -> Example:
    wanted = "a JSON object with the texts prompt and answer, and maybe context, with which the prompt begins"
    try:
        told: Any = parse_json(line.encode())
        texts = [told["prompt"], told["answer"], told.get("context", "")]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{file}, line {number}: {wanted} was wanted") from error
    if not all(isinstance(text, str) for text in texts) or not texts[0] or not texts[0].startswith(texts[2]):
        raise UserError(f"{file}, line {number}: {wanted} was wanted")
    if any("\ud800" <= letter <= "\udfff" for text in texts for letter in text):
        raise UserError(f"{file}, line {number} holds half a letter (a lone surrogate), which no tokenizer takes")
    unknown = sorted(set(told) - _FIELDS)
    if unknown:
        raise UserError(
            f"{file}, line {number} has {unknown[0]!r}, which no question has: {', '.join(sorted(_FIELDS))}"
        )
    return Example(*texts)
