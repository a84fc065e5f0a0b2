"""Documents: rows of equal length packed with problems, and which of their tokens are answers.

A document starts with `<bos>`; every question is followed by `=>`, its answer and `<eos>`; what room is left after the
last answer is filled with `<eos>` and counts as that answer's, so that a model learns where answers end in a canvas of
any length.

Costs about two microseconds a token. Misleads: problems share a row, so one document may tell two passkeys, two keys of
ruby or two holders of a cup; what was told last before a question counts. And long problems fit less often than short
ones: weights say how often a task is drawn, not how often it is told.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from sinkscope.language.problems import MAKERS, Problem, Split, draw, filler
from sinkscope.language.vocabulary import BOS, END, EOS, encode, ids

STORY_SHARE = 0.05
"""Of the documents, those that are plain stories."""
_TRIES = 4
"""How many problems in a row may be too long for the room left before a document is closed."""


@dataclass(frozen=True)
class Document:
    tokens: list[int]
    answer: list[bool]
    """True for the tokens of answers, the `<eos>` after them included."""
    facts: tuple[str, ...]


def prompt_text(problem: Problem, question: int = 0) -> str:
    """What a model is given: the context, one question, `=>`."""
    return " ".join(part for part in (problem.context, problem.questions[question][0], END) if part)


def document(random: Random, length: int, *, split: Split = "train", weights: Mapping[str, float]) -> Document:
    """A document of exactly `length` tokens, at least 1, its problems drawn by `weights` (task -> relative frequency).

    Every problem is of `split`; a task in `weights` is one of `MAKERS`.
    """
    tokens, answer, facts = [ids()[BOS]], [False], []
    tasks, shares = list(weights), list(weights.values())
    if random.random() < STORY_SHARE:
        told = encode(" ".join(filler(random, length - 1)))
        tokens, answer = tokens + told, answer + [False] * len(told)
    misses = 0 if len(tokens) == 1 else _TRIES
    while misses < _TRIES:
        room = length - len(tokens)
        problem = draw(MAKERS[random.choices(tasks, shares)[0]], random, room, split)
        said, marks = _said(problem)
        if len(said) > room:
            misses += 1
            continue
        tokens, answer = tokens + said, answer + marks
        facts.append(problem.facts)
    rest = length - len(tokens)
    return Document(tokens + [ids()[EOS]] * rest, answer + [bool(facts)] * rest, tuple(facts))


def _said(problem: Problem) -> tuple[list[int], list[bool]]:
    said = encode(problem.context)
    marks = [False] * len(said)
    for question, reply in problem.questions:
        asked, told = encode(f"{question} {END}"), [*encode(reply), ids()[EOS]]
        said += asked + told
        marks += [False] * len(asked) + [True] * len(told)
    return said, marks
