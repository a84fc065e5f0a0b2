"""Problems with exact answers, and the filler between facts: every task of the little language.

    draw(MAKERS["copy"], Random(1), 64, "test")

    arithmetic-1  Ann has 5 apples. Ann buys 3 more. How many apples does Ann have now? => 8
    arithmetic-2  Ann has 5 apples. Ann buys 3 more. Ann sells 2 apples. How many are left? => 5+3=8, 8-2=6
    passkey       It is a cold night. The passkey is 471. Ann walks to the river. What is the passkey? => 471
    lookup        The key of ruby is 47. The key of jade is 31. What is the key of jade? => 31
    tracking      Ann has the ball. Bo has the cup. Ann gives the ball to Cy. Who has the ball? => Cy
    copy          Copy the list: d a f => d a f (and "reverse", "sort")

Train and test are disjoint by construction: the facts of a problem are hashed, one problem in ten belongs to the test
split, and a generator draws until it has one of the split that was asked for. The same facts told in other words stay
on the same side.

Arithmetic has one to three steps, a GSM8K in miniature: one step is answered by its result, more with the work, whose
last number is the result. No number is larger than 37 or smaller than 0. Lists take 12 to 18 tokens. Recall and
tracking keep to `room`, a number of tokens, from 26 (passkey), 27 (look-up) and 38 (tracking) on; below that a text has
its least length. The number of keys grows with it: two or three in 48 tokens, two to four in 64, up to six from 83 on.

Where it misleads: the first step of a sum is one of 144, all of which training shows under other names, so a held-out
story of one step asks for a known sum; a longer training story may begin with the facts of a held-out shorter one. One
of the values told, picked at random, is right in half of the look-ups with two keys, in a sixth with six. The last
sentence that names an object tells who has it, so nothing needs to be followed, and in nearly half of the questions the
object never changed hands. A held-out list is a new order of letters for its verb alone; another verb may have had it
in training, and most of the 14,756 sorted lists are answers there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Literal

from sinkscope.language.vocabulary import ANIMALS, GEMS, LETTERS, NAMES, OBJECTS, PLACES, QUALITIES, THINGS, TIMES

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
"""Draws a problem for a room in tokens: context, questions, `=>`, answers and `<eos>` together."""


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


_SENTENCES = (
    "{name} walks to the {place}.",
    "The {animal} sleeps near the {place}.",
    "It is a {quality} {time}.",
    "{name} sees the {quality} {animal}.",
    "The {place} is {quality}.",
    "In the {time} {name} waits by the {place}.",
    "The {quality} {animal} runs from the {place}.",
    "{name} likes the {animal}.",
    "There is the {animal} under the {place}.",
    "{name} rests with the {animal}.",
    "{name} waits for {other} by the {place}.",
    "At {time} the {animal} sings.",
)
LONGEST_SENTENCE = 9
"""Tokens of the longest of them."""


def sentence(random: Random) -> str:
    """One sentence that no question asks about."""
    pattern = random.choice(_SENTENCES)
    name, other = random.sample(NAMES, 2)
    place, animal, quality, time = (random.choice(words) for words in (PLACES, ANIMALS, QUALITIES, TIMES))
    return pattern.format(name=name, other=other, place=place, animal=animal, quality=quality, time=time)


def filler(random: Random, tokens: int) -> list[str]:
    """Sentences of at most `tokens` tokens together."""
    return [sentence(random) for _ in range(max(0, tokens) // LONGEST_SENTENCE)]


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


def _arithmetic(steps: int, random: Random, room: int) -> Problem:  # noqa: ARG001  # a story has the length it has
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


MOST_KEYS = 6
_KEY, _KEY_QUESTION, _PASSKEY = 8, 11, 17
"""Tokens of a key's sentence, of a question with its answer, of a passkey with both."""


def _passkey(random: Random, room: int) -> Problem:
    value = "".join(random.choices("0123456789", k=3))
    lines = filler(random, random.randint(LONGEST_SENTENCE, max(LONGEST_SENTENCE, room - _PASSKEY)))
    lines.insert(random.randint(0, len(lines)), f"The passkey is {value}.")
    return Problem(" ".join(lines), (("What is the passkey?", value),), f"passkey {value}")


def _lookup(random: Random, room: int) -> Problem:
    keys = random.randint(2, max(2, min(MOST_KEYS, (room - _KEY_QUESTION) // (_KEY + 4))))
    gems = random.sample(GEMS, keys)
    values = ["".join(random.choices("0123456789", k=2)) for _ in gems]
    asked = random.sample(range(keys), max(1, min(keys, (room - _KEY * keys) // _KEY_QUESTION)))
    lines = [f"The key of {gem} is {value}." for gem, value in zip(gems, values, strict=True)]
    spare = room - _KEY * keys - _KEY_QUESTION * len(asked)
    for line in filler(random, random.randint(0, max(0, spare))):
        lines.insert(random.randint(0, len(lines)), line)
    questions = tuple((f"What is the key of {gems[place]}?", values[place]) for place in asked)
    facts = " ".join(f"{gem} {value}" for gem, value in sorted(zip(gems, values, strict=True)))
    return Problem(" ".join(lines), questions, facts)


_HOLDS = ("{name} has the {thing}.", "{name} holds the {thing}.", "At first {name} has the {thing}.")
_MOVES = (
    "{name} gives the {thing} to {other}.",
    "{other} takes the {thing} from {name}.",
    "Then {name} hands the {thing} to {other}.",
    "{name} passes the {thing} to {other}.",
)
MOST_MOVES = 3
_HAND_OVER, _HOLDER_QUESTION = 8, 8
"""Tokens of the longest sentence, and of a question with its answer."""


def _tracking(random: Random, room: int) -> Problem:
    objects = random.sample(OBJECTS, 2 if room < 64 else random.randint(2, 3))
    people = random.sample(NAMES, len(objects) + 2)
    holder = dict(zip(objects, people, strict=False))
    sentences = [random.choice(_HOLDS).format(name=name, thing=thing) for thing, name in holder.items()]
    facts = [f"{name} {thing}" for thing, name in holder.items()]
    most = (room - (_HAND_OVER + _HOLDER_QUESTION) * len(objects)) // _HAND_OVER
    for _ in range(random.randint(1, max(1, min(MOST_MOVES, most)))):
        thing = random.choice(objects)
        other = random.choice([name for name in people if name != holder[thing]])
        sentences.append(random.choice(_MOVES).format(name=holder[thing], other=other, thing=thing))
        facts.append(f"{thing} {other}")
        holder[thing] = other
    asked = random.sample(objects, len(objects))
    questions = tuple((f"Who has the {thing}?", holder[thing]) for thing in asked)
    return Problem(" ".join(sentences), questions, ", ".join(facts))


SHORTEST_LIST, LONGEST_LIST = 3, 6


def _list(verb: str, order: Callable[[Sequence[str]], list[str]], random: Random, room: int) -> Problem:  # noqa: ARG001
    letters = random.sample(LETTERS, random.randint(SHORTEST_LIST, LONGEST_LIST))
    given = " ".join(letters)
    return Problem("", ((f"{verb} the list: {given}", " ".join(order(letters))),), f"{verb} {given}")


MAKERS: Mapping[str, Maker] = {
    **{f"arithmetic-{steps}": partial(_arithmetic, steps) for steps in (1, 2, 3)},
    "passkey": _passkey,
    "lookup": _lookup,
    "tracking": _tracking,
    "copy": partial(_list, "Copy", list),
    "reverse": partial(_list, "Reverse", lambda letters: [*letters][::-1]),
    "sort": partial(_list, "Sort", sorted),
}
"""Task -> what draws its problems."""
