"""Objects that change hands: who has one in the end?

Ann has the ball. Bo has the cup. Ann gives the ball to Cy. Who has the ball? => Cy

Keeps to the room from 38 tokens on; below that a text takes 33 to 38 all the same.

Misleads: the last sentence that names an object tells who has it, so nothing needs to be followed; and in nearly half
of the questions the object never changed hands, so its first holder is right.
"""

from __future__ import annotations

from random import Random

from sinkscope.language.problems import Maker, Problem
from sinkscope.language.vocabulary import NAMES, OBJECTS

_HOLDS = ("{name} has the {thing}.", "{name} holds the {thing}.", "At first {name} has the {thing}.")
_MOVES = (
    "{name} gives the {thing} to {other}.",
    "{other} takes the {thing} from {name}.",
    "Then {name} hands the {thing} to {other}.",
    "{name} passes the {thing} to {other}.",
)
MOST_MOVES = 3
_SENTENCE, _ASK = 8, 8
"""Tokens of the longest sentence, and of a question with its answer."""


def _make(random: Random, room: int) -> Problem:
    objects = random.sample(OBJECTS, 2 if room < 64 else random.randint(2, 3))
    people = random.sample(NAMES, len(objects) + 2)
    holder = dict(zip(objects, people, strict=False))
    sentences = [random.choice(_HOLDS).format(name=name, thing=thing) for thing, name in holder.items()]
    facts = [f"{name} {thing}" for thing, name in holder.items()]
    most = (room - (_SENTENCE + _ASK) * len(objects)) // _SENTENCE
    for _ in range(random.randint(1, max(1, min(MOST_MOVES, most)))):
        thing = random.choice(objects)
        other = random.choice([name for name in people if name != holder[thing]])
        sentences.append(random.choice(_MOVES).format(name=holder[thing], other=other, thing=thing))
        facts.append(f"{thing} {other}")
        holder[thing] = other
    asked = random.sample(objects, len(objects))
    questions = tuple((f"Who has the {thing}?", holder[thing]) for thing in asked)
    return Problem(" ".join(sentences), questions, ", ".join(facts))


MAKERS: dict[str, Maker] = {"tracking": _make}
