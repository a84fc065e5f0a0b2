"""When an answer is right: one small function for each kind of answer.

White space does not count, because a tokenizer with one token a digit may say "12" as "1 2".

Misleads: an answer that says more than was asked is wrong for `exact`, and right for the others if its number is;
`last_number` looks at nothing but the number that the answer ends with, so wrong steps with a right end are right.
"""

from __future__ import annotations

import re
from collections.abc import Callable

Scorer = Callable[[str, str], bool]
"""(expected, got) -> whether it is right; `got` is the generated text up to its end."""

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


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


def _squeezed(text: str) -> str:
    return "".join(text.split())


def _result(text: str) -> str | None:
    numbers = _NUMBER.findall(_squeezed(text).rpartition("=")[2])
    return numbers[-1] if numbers else None
