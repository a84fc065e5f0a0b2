"""Passkey and multi-key look-up in filler text.

It is a cold night. The passkey is 471. Ann walks to the river. What is the passkey? => 471
The key of ruby is 47. The key of jade is 31. What is the key of jade? => 31

Keeps to the room from 26 tokens (passkey) and 27 (look-up) on; below that a text has its least length. A passkey has a
plain sentence beside it at least. The number of keys grows with the room: two or three in 48 tokens, two to four in 64,
up to six from 83 on.

Misleads: one of the values told, picked at random, is right in half of the look-ups with two keys, in a sixth with six.
"""

from __future__ import annotations

from random import Random

from sinkscope.language.problems import Maker, Problem
from sinkscope.language.stories import LONGEST, filler
from sinkscope.language.vocabulary import GEMS

MOST_KEYS = 6
_KEY, _ASK, _PASSKEY = 8, 11, 17
"""Tokens of a key's sentence, of a question with its answer, of a passkey with both."""


def _passkey(random: Random, room: int) -> Problem:
    value = "".join(random.choices("0123456789", k=3))
    lines = filler(random, random.randint(LONGEST, max(LONGEST, room - _PASSKEY)))
    lines.insert(random.randint(0, len(lines)), f"The passkey is {value}.")
    return Problem(" ".join(lines), (("What is the passkey?", value),), f"passkey {value}")


def _lookup(random: Random, room: int) -> Problem:
    keys = random.randint(2, max(2, min(MOST_KEYS, (room - _ASK) // (_KEY + 4))))
    gems = random.sample(GEMS, keys)
    values = ["".join(random.choices("0123456789", k=2)) for _ in gems]
    asked = random.sample(range(keys), max(1, min(keys, (room - _KEY * keys) // _ASK)))
    lines = [f"The key of {gem} is {value}." for gem, value in zip(gems, values, strict=True)]
    spare = room - _KEY * keys - _ASK * len(asked)
    for line in filler(random, random.randint(0, max(0, spare))):
        lines.insert(random.randint(0, len(lines)), line)
    questions = tuple((f"What is the key of {gems[place]}?", values[place]) for place in asked)
    facts = " ".join(f"{gem} {value}" for gem, value in sorted(zip(gems, values, strict=True)))
    return Problem(" ".join(lines), questions, facts)


MAKERS: dict[str, Maker] = {"passkey": _passkey, "lookup": _lookup}
