"""Plain stories: sentences without a question, filler between facts."""

from __future__ import annotations

from random import Random

from sinkscope.language.vocabulary import ANIMALS, NAMES, PLACES, QUALITIES, TIMES

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
LONGEST = 9
"""Tokens of the longest sentence."""


def sentence(random: Random) -> str:
    """One sentence that no question asks about."""
    pattern = random.choice(_SENTENCES)
    name, other = random.sample(NAMES, 2)
    return pattern.format(
        name=name,
        other=other,
        place=random.choice(PLACES),
        animal=random.choice(ANIMALS),
        quality=random.choice(QUALITIES),
        time=random.choice(TIMES),
    )


def filler(random: Random, tokens: int) -> list[str]:
    """Sentences of at most `tokens` tokens together."""
    return [sentence(random) for _ in range(max(0, tokens) // LONGEST)]
