"""The fixed vocabulary of the little language: every word it can say, digits one by one, and its tokenizer.

Words are split at white space, punctuation is a token, every digit is a token, `=>` opens an answer. Nothing else can
be said: text with another word is refused with the word and its place.

Costs nothing. Misleads: "12" is the two tokens 1 and 2, so a number's length is part of what a model must predict.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

from sinkscope.errors import UserError

BOS, EOS, PAD, MASK, UNKNOWN, END = "<bos>", "<eos>", "<pad>", "<mask>", "<unk>", "=>"
SPECIAL = (PAD, BOS, EOS, MASK, UNKNOWN)


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


NAMES = _words("Ann Bo Cy Dan Eve Flo Gus Hal Ida Jon Kim Leo Mia Ned Oda Pam Rex Sue Tom Uma Vic Wes Yan Zoe")
THINGS = _words("apples books coins cards eggs shells stones stamps pears nuts keys cups rings beans bells pens")
OBJECTS = _words("ball book cup drum flute hat kite lamp map ring rope sword")
GEMS = _words("agate amber coral garnet ivory jade jet onyx opal pearl quartz ruby silver topaz")
LETTERS = tuple("abcdefghijklmnop")
PLACES = _words("river market forest bridge garden castle harbor valley school temple")
ANIMALS = _words("dog cat horse owl fox goat crow frog")
QUALITIES = _words("old small quiet bright cold green happy slow wet tall")
TIMES = _words("morning evening winter summer night")
_OTHERS = _words(
    "the The There It In At Then first has owns holds takes buys finds gives gets loses sells drops picks hands passes "
    "walks sleeps sees sings runs waits rests likes is was are more of them to from near by under over for with and "
    "How many does have now left who What Who key passkey Copy Reverse Sort list day it had Count that"
)
_SIGNS = _words(". , ? : + - = =>")
_DIGITS = tuple("0123456789")
_NOUNS = (*NAMES, *THINGS, *OBJECTS, *GEMS, *PLACES, *ANIMALS, *QUALITIES, *TIMES)

WORDS: tuple[str, ...] = tuple(dict.fromkeys((*SPECIAL, *_DIGITS, *_SIGNS, *LETTERS, *_NOUNS, *_OTHERS)))
"""All tokens; a token's place is its id."""

SPLIT = r"=>|\d|[A-Za-z]+|[^\sA-Za-z\d]"
"""What one token is, as a regular expression."""


@cache
def ids() -> dict[str, int]:
    return {word: index for index, word in enumerate(WORDS)}


def encode(text: str) -> list[int]:
    """Token ids of a text without special tokens.

    Raises `UserError` naming the first word that the language lacks and the character (from 1) it starts at.
    """
    known = ids()
    found: list[int] = []
    for match in re.finditer(SPLIT, text):
        index = known.get(match.group())
        if index is None:
            raise UserError(
                f"the little language has no word {match.group()!r} (character {match.start() + 1} of {text[:60]!r})"
            )
        found.append(index)
    return found


def decode(tokens: Sequence[int]) -> str:
    """The text of token ids, special tokens left out, digits of a number together, no space before punctuation."""
    text = " ".join(WORDS[token] for token in tokens if WORDS[token] not in SPECIAL)
    text = re.sub(r"(?<=\d) (?=\d)", "", text)
    return re.sub(r" (?=[.,?:])", "", text)
