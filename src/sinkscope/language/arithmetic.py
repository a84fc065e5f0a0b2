"""Arithmetic stories of one to three steps, a GSM8K in miniature: one step by its result, more with the work.

    Ann has 5 apples. Ann buys 3 more. How many apples does Ann have now? => 8
    Ann has 5 apples. Ann buys 3 more. Ann sells 2 apples. How many are left? => 5+3=8, 8-2=6

The last number of the answer is the result. No number is larger than 37 or smaller than 0.

Misleads: the first step is one of 144 sums, all of which training shows under other names, so a held-out story of one
step asks for a known sum. A longer training story may begin with the facts of a held-out shorter one.
"""

from __future__ import annotations

from functools import partial
from random import Random

from sinkscope.language.problems import Maker, Problem
from sinkscope.language.vocabulary import NAMES, THINGS

_STARTS = ("{name} has {n} {things}.", "At first {name} has {n} {things}.", "{name} owns {n} {things}.")
_GAINS = (
    "{name} buys {n} more.",
    "{name} finds {n} {things}.",
    "{name} gets {n} more from {other}.",
    "Then {name} picks {n} {things}.",
)
_LOSSES = (
    "{name} loses {n} of them.",
    "{name} gives {n} {things} to {other}.",
    "{name} sells {n} {things}.",
    "Then {name} drops {n} of them.",
    "{other} takes {n} {things} from {name}.",
)
_QUESTIONS = ("How many {things} does {name} have now?", "How many are left?", "Count the {things} of {name}.")
LARGEST_START, LARGEST_STEP = 10, 9


def _make(steps: int, random: Random, room: int) -> Problem:  # noqa: ARG001  # a story has the length it has
    name, other = random.sample(NAMES, 2)
    things = random.choice(THINGS)
    total = random.randint(1, LARGEST_START)
    sentences = [random.choice(_STARTS).format(name=name, n=total, things=things)]
    work, facts = [], [name, things, str(total)]
    for _ in range(steps):
        change = random.randint(1, LARGEST_STEP)
        gains = change > total or random.random() < 0.5
        sign, after = ("+", total + change) if gains else ("-", total - change)
        pattern = random.choice(_GAINS if gains else _LOSSES)
        sentences.append(pattern.format(name=name, other=other, n=change, things=things))
        work.append(f"{total}{sign}{change}={after}")
        facts.append(f"{sign}{change}")
        total = after
    question = random.choice(_QUESTIONS).format(name=name, things=things)
    # Of one step the work is not shown, so that the whole weight of an answer lies on the result.
    answer = str(total) if steps == 1 else ", ".join(work)
    return Problem(" ".join(sentences), ((question, answer),), " ".join(facts))


MAKERS: dict[str, Maker] = {f"arithmetic-{steps}": partial(_make, steps) for steps in (1, 2, 3)}
