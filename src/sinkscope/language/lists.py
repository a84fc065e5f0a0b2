"""Copying, reversing and sorting short lists of letters.

Reverse the list: d a f => f a d

Takes 12 to 18 tokens, whatever the room. Misleads: a held-out list is a new order of letters for its verb alone;
another verb may have had it in training, and most of the 14,756 sorted lists are answers there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from random import Random

from sinkscope.language.problems import Maker, Problem
from sinkscope.language.vocabulary import LETTERS

SHORTEST, LONGEST = 3, 6
Order = Callable[[Sequence[str]], list[str]]


def _make(verb: str, order: Order, random: Random, room: int) -> Problem:  # noqa: ARG001  # a list has its length
    letters = random.sample(LETTERS, random.randint(SHORTEST, LONGEST))
    given = " ".join(letters)
    return Problem("", ((f"{verb} the list: {given}", " ".join(order(letters))),), f"{verb} {given}")


def _backwards(letters: Sequence[str]) -> list[str]:
    return list(reversed(letters))


MAKERS: dict[str, Maker] = {
    "copy": partial(_make, "Copy", list),
    "reverse": partial(_make, "Reverse", _backwards),
    "sort": partial(_make, "Sort", sorted),
}
