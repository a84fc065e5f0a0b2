"""One problem: a context, questions about it with their answers, and the facts that decide its split.

Train and test are disjoint by construction: the facts are hashed, one problem in ten belongs to the test split, and a
generator draws until it has one of the split that was asked for. The same facts told in other words stay on the same
side.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Literal

Split = Literal["train", "test"]
TEST_SHARE = 0.1


@dataclass(frozen=True)
class Problem:
    """A text to read and questions with exact answers."""

    context: str
    questions: tuple[tuple[str, str], ...]
    """(question, answer), every question about the same context."""
    facts: str
    """What is asked about, whatever the words."""

    @property
    def split(self) -> Split:
        """`test` for one in ten, by the hash of the facts."""
        return split_of(self.facts)


Maker = Callable[[Random, int], Problem]
"""Draws a problem for a room in tokens, its questions, `=>`, answers and `<eos>` included.

Recall and tracking keep to the room where their shortest text does; arithmetic and lists take what they take.
"""


def split_of(facts: str) -> Split:
    """The side on which facts fall, the same on every machine and in every run."""
    digest = hashlib.blake2b(facts.encode(), digest_size=4).digest()
    return "test" if int.from_bytes(digest, "big") < TEST_SHARE * 2**32 else "train"


def draw(maker: Maker, random: Random, room: int, split: Split) -> Problem:
    """A problem of the split: draws until there is one, on average ten times for a test problem."""
    while True:
        problem = maker(random, room)
        if problem.split == split:
            return problem
