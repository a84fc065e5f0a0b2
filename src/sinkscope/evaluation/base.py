"""What a task is: a stream of examples with exact answers, and when an answer is right."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random

from sinkscope.errors import UserError
from sinkscope.evaluation.answers import Scorer

ROOM = 64
"""Tokens that a problem's text may take, if nobody says otherwise."""


@dataclass(frozen=True)
class Example:
    """One question and its answer."""

    prompt: str
    answer: str
    context: str = field(default="", repr=False)
    """Head of the prompt, up to where the question begins; empty where the question is all there is."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """A kind of question. It is one small unit, filed in `tasks.TASKS`."""

    name: str
    summary: str
    """One line."""
    gen_length: int
    """Tokens of the canvas that its answers are generated in: the longest answer with its end, rounded up to a
    multiple of 4."""
    stream: Callable[[Random, int], Iterator[Example]]
    """Held-out examples in at most about so many tokens of room; what comes follows from the random generator alone.
    It may go on for ever, and may repeat itself."""
    is_right: Scorer


def check_count(name: str, value: int) -> None:
    """Refuse what is no whole number of at least 1."""
    if not isinstance(value, int) or value < 1:
        raise UserError(f"{name} must be a whole number of at least 1, got {value!r}")
