"""Texts to measure likelihoods on, without a download: prose, reactions, and the little language.

    perplexity(load_model("smollm2-135m"), prose())
    infilling_accuracy(load_model("rxnmapper"), reactions())
    perplexity(load_model("twin-ar"), little_texts(100))

The prose was written for this package and states public facts; no model was trained on its wording. The reactions are
textbook examples (esters, amides, couplings, reductions), one a line as reaction SMILES, reactants before products.

Misleads: there is little of it. Eight texts of about two hundred tokens tell a large change of perplexity from none,
not a small one.
"""

from __future__ import annotations

from importlib.resources import files
from random import Random

from sinkscope.errors import UserError
from sinkscope.evaluation.base import check_count
from sinkscope.language import MAKERS, document
from sinkscope.language.vocabulary import EOS, ids

LEAST = 24
"""Tokens of the shortest documents."""


def prose() -> list[str]:
    """Short English texts, a paragraph each."""
    return _lines("prose.txt")


def reactions() -> list[str]:
    """Reaction SMILES without atom mapping."""
    return _lines("reactions.txt")


def little_texts(n: int, *, length: int = 64, seed: int = 0) -> list[list[int]]:
    """Token ids of `n` held-out documents of the little language, each of length / 2 to `length` tokens, all tasks
    equally often.

    They end with their last answer's `<eos>`, without those that fill a document up. Fewer of them are the first of
    more. Raises `UserError` for numbers that leave no room.
    """
    check_count("n", n)
    if length < LEAST:
        raise UserError(f"length must be at least {LEAST} tokens for a problem to fit, got {length}")
    random, weights = Random(f"texts {seed}"), dict.fromkeys(MAKERS, 1.0)
    found: list[list[int]] = []
    while len(found) < n:
        tokens = _told(document(random, length, split="test", weights=weights).tokens)
        if 2 * len(tokens) >= length:
            found.append(tokens)
    return found


def _told(tokens: list[int]) -> list[int]:
    """Without the filling after the first of the `<eos>` at the end."""
    end = len(tokens)
    while end > 1 and tokens[end - 1] == tokens[end - 2] == ids()[EOS]:
        end -= 1
    return tokens[:end]


def _lines(name: str) -> list[str]:
    text = files(__name__).joinpath(name).read_text(encoding="utf-8")
    return [line for line in text.splitlines() if line]
