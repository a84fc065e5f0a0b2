"""The tasks of the little language, each with held-out problems only.

Of a problem with several questions only the first is asked. Texts are told in 24 tokens up to the room given, so that
their lengths vary; only passkey and look-up fill the room, the others are as long as they are. Misleads: a passkey has
three digits, of which about a hundred values are held out; its prompts differ by the filler around it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from random import Random

from sinkscope.evaluation.answers import Scorer, exact, first_number, last_number
from sinkscope.evaluation.base import Example, Task
from sinkscope.language import MAKERS, prompt_text
from sinkscope.language.problems import Maker, draw

LEAST_ROOM = 24
"""The shortest texts are told in so many tokens, or in all the room there is if that is less."""


def _held_out(maker: Maker, random: Random, room: int) -> Iterator[Example]:
    while True:
        problem = draw(maker, random, random.randint(min(LEAST_ROOM, room), room), "test")
        yield Example(prompt_text(problem), problem.questions[0][1], problem.context)


def _task(name: str, gen_length: int, summary: str, is_right: Scorer = exact) -> Task:
    stream = partial(_held_out, MAKERS[name])
    return Task(name=name, summary=summary, gen_length=gen_length, stream=stream, is_right=is_right)


TASKS: tuple[Task, ...] = (
    _task("arithmetic-1", 4, "a story with one step; the result counts", last_number),
    _task("arithmetic-2", 16, "a story with two steps; the result counts", last_number),
    _task("arithmetic-3", 24, "a story with three steps; the result counts", last_number),
    _task("passkey", 4, "three digits somewhere in a plain story; the first number counts", first_number),
    _task("lookup", 4, "the value of one of several keys"),
    _task("tracking", 4, "who has an object that changed hands"),
    _task("copy", 8, "a list of 3 to 6 letters as it is"),
    _task("reverse", 8, "a list of 3 to 6 letters from its end"),
    _task("sort", 8, "a list of 3 to 6 letters in the order of the alphabet"),
)
