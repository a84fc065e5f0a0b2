"""RULER: needles of several kinds, chains of variables, common and frequent words, in contexts of any length.

    make = find_measure("ruler-multikey-2", MeasureOptions(lengths=(4096,)))

The recipe of Hsieh et al. 2024 (arXiv 2404.06654): what is hidden, how often and in what, the questions and the
beginning of each answer are theirs. Made here, with nothing to fetch: essays are the packaged prose, its sentences in a
new order, where theirs are Paul Graham's; words come from that prose too, in pairs where a list needs more than it has.
So scores are not theirs to the digit. Its two tasks of reading (SQuAD, HotpotQA) need those data and are left out: take
them from lm-eval.

A score is the share of what was asked that the answer holds, letters of either case. Every context has a length in the
model's own tokens, room for the answer included; what is hidden keeps its number, the hay gives way.

Costs some encodings of a whole context for each example. Misleads: repeated sentences (`ruler-single-1`, `ruler-vt`)
are read past easily, and a key-value cache of them compresses well.
"""

from __future__ import annotations

import re
import string
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import islice, pairwise
from random import Random
from typing import NamedTuple

from sinkscope.decoding import encode_prompts
from sinkscope.errors import UserError
from sinkscope.evaluation.answers import ExactAnswers, lay_out_answers
from sinkscope.evaluation.measuring import MeasureOptions
from sinkscope.evaluation.tasks import Example, Task
from sinkscope.evaluation.texts import prose
from sinkscope.families import Model

PREFIX = "ruler-"
LENGTHS = (1024,)
"""Of the contexts with their answers, in tokens, if nobody says otherwise."""
_NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
_LETTERS = 6
"""Of a coded word."""
_EXPONENT = 2.0
"""Of the frequencies of coded words."""
_HOPS = 4
_COMMON = 10
_LEAST_HAY = 20
"""Pieces: more than anything that is hidden between them."""
_LONG = 4096
"""From this length on common words are as common as printed; in shorter contexts 6 to 1."""


class RulerText(NamedTuple):
    """A context with what is hidden in it, the question and the beginning of the answer, and what is asked for."""

    context: str
    question: str
    wanted: list[str]


@dataclass(frozen=True)
class RulerKind:
    """One task. tell: with so many pieces of hay, of a context for so many tokens. gen_length: tokens of its answer."""

    tell: Callable[[Random, int, int], RulerText]
    gen_length: int


def share_found(expected: str, got: str) -> float:
    """The share of the wanted, a line each, that stands in the answer."""
    wanted = expected.split("\n")
    return sum(one.lower() in got.lower() for one in wanted) / len(wanted)


def make_ruler(model: Model, options: MeasureOptions, name: str) -> ExactAnswers:
    """About `options.examples.n` examples, as many of every length. Raises `UserError` for a length without room."""
    kind, asked = KINDS[name], options.examples
    if model.family.closed_vocabulary:
        raise UserError(f"{PREFIX}{name} is told in English, which {model.name} does not read; ask for needle")
    if model.tokenizer is None:
        raise UserError(f"{model.name} has no tokenizer, and {PREFIX}{name} is text; add one to its folder")
    lengths = LENGTHS if options.lengths is None else options.lengths
    each = max(1, asked.n // len(lengths))
    drawn: list[Example] = []
    for length in lengths:
        random = Random(f"{PREFIX}{name} {asked.seed} {length}")
        pieces = _most_pieces(model, kind, name, length)
        drawn += [_fitting(model, kind, random, length, pieces) for _ in range(each)]
    task = Task(
        name=f"{PREFIX}{name}",
        summary="of RULER",
        gen_length=kind.gen_length,
        stream=lambda _, __: iter(drawn),
        is_right=share_found,
        in_parts=True,
    )
    how = {"seed": asked.seed, "lengths": list(lengths)}
    counted = f"{len(lengths)} lengths take the same number of examples each: {len(drawn)} in all, not {asked.n}"
    return lay_out_answers(model, task, drawn, options, drawn=how, notes=() if len(drawn) == asked.n else (counted,))


def _most_pieces(model: Model, kind: RulerKind, name: str, length: int) -> int:
    """Pieces of hay with which an example fits. Raises `UserError` where none does."""

    def taken(pieces: int) -> int:
        return _size(model, kind.tell(Random(0), pieces, length)) + kind.gen_length

    def fits(pieces: int) -> bool:
        return taken(pieces) <= length

    least = _LEAST_HAY
    if not fits(least):
        raise UserError(
            f"{PREFIX}{name} has no room in {length} tokens: it takes about {taken(least)} at least, its answer's "
            f"{kind.gen_length} included; name larger --lengths"
        )
    most = 2 * least
    while fits(most):
        least, most = most, 2 * most
    while most - least > max(1, least // 50):
        middle = (least + most) // 2
        least, most = (middle, most) if fits(middle) else (least, middle)
    return least


def _fitting(model: Model, kind: RulerKind, random: Random, length: int, pieces: int) -> Example:
    """An example, with fewer pieces where its words take more tokens than those that were tried."""
    while True:
        told = kind.tell(random, pieces, length)
        if pieces <= _LEAST_HAY or _size(model, told) + kind.gen_length <= length:
            return Example(f"{told.context}{told.question}", "\n".join(told.wanted), told.context)
        pieces = max(_LEAST_HAY, pieces - max(1, pieces // 50))


def _size(model: Model, told: RulerText) -> int:
    return len(encode_prompts(model, f"{told.context}{told.question}")[0])


@cache
def _lines() -> list[str]:
    return [line for text in prose() for line in re.split(r"(?<=\.) ", text)]


@cache
def _vocabulary() -> list[str]:
    return sorted({word.lower() for line in _lines() for word in re.findall(r"[A-Za-z]{4,}", line)})


def _words(random: Random, count: int) -> list[str]:
    """Different words; pairs of them beside, where there are too few."""
    known = _vocabulary()
    found = dict.fromkeys(random.sample(known, min(count, len(known))))
    while len(found) < count:
        found["-".join(random.sample(known, 2))] = None
    return list(found)


def _essay(random: Random, pieces: int) -> list[str]:
    def endless() -> Iterator[str]:
        while True:
            yield from random.sample(_lines(), len(_lines()))

    return list(islice(endless(), pieces))


def _pair(random: Random) -> str:
    return "-".join(random.sample(_vocabulary(), 2))


def _number(random: Random) -> str:
    return str(random.randint(10**6, 10**7 - 1))


def _uuid(random: Random) -> str:
    return str(uuid.UUID(int=random.getrandbits(128), version=4))


_WRITTEN: dict[str, Callable[[Random], str]] = {"words": _pair, "numbers": _number, "uuids": _uuid}


def _needle(kind: str, key: str, value: str) -> str:
    return f"One of the special magic {kind} for {key} is: {value}."


def _needles(
    random: Random, pieces: int, _: int, *, hay: str, keys: int = 1, values: int = 1, asked: int = 1,
    key: str = "words", value: str = "numbers",
) -> RulerText:  # fmt: skip
    """keys: that are hidden, each with so many values; asked: of them."""
    write_key, write = _WRITTEN[key], _WRITTEN[value]
    hidden = {write_key(random): [write(random) for _ in range(values)] for _ in range(keys)}
    if hay == "needles":
        lines = [_needle(value, write_key(random), write(random)) for _ in range(pieces)]
    else:
        lines = [_NOISE] * pieces if hay == "noise" else _essay(random, pieces)
    told = [_needle(value, name, one) for name, some in hidden.items() for one in some]
    random.shuffle(told)
    for place, needle in zip(sorted(random.sample(range(pieces), len(told)), reverse=True), told, strict=True):
        lines.insert(place, needle)
    names = random.sample(list(hidden), asked)
    query = names[0] if asked == 1 else f"{', '.join(names[:-1])}, and {names[-1]}"
    single = asked * values == 1
    some, noun, verb = ("A", value.removesuffix("s"), "is") if single else ("Some", value, "are")
    hides = f"{some} special magic {noun} {verb} hidden within the following text."
    context = f"{hides} Make sure to memorize it. I will quiz you about the {noun} afterwards.\n"
    which = "the" if single else "all the"
    asks = f"What {verb} {which} special magic {noun} for {query} mentioned in the provided text?"
    begins = f" The special magic {noun} for {query} mentioned in the provided text {verb}"
    wanted = [one for name in names for one in hidden[name]]
    return RulerText(context + ("\n" if hay != "essays" else " ").join(lines), f"\n{asks}{begins}", wanted)


def _variables(random: Random, pieces: int, _: int) -> RulerText:
    names: dict[str, None] = {}
    while len(names) <= _HOPS:
        names["".join(random.choices(string.ascii_uppercase, k=5))] = None
    chain, value = list(names), random.randint(10000, 99998)
    steps = [f"VAR {chain[0]} = {value}", *(f"VAR {new} = VAR {old}" for old, new in pairwise(chain))]
    lines = [_NOISE] * pieces
    places = sorted(random.sample(range(pieces), len(steps)), reverse=True)
    for place, step in zip(places, reversed(steps), strict=True):
        lines.insert(place, step)
    head = "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n"
    asks = f"\nQuestion: Find all variables that are assigned the value {value} in the text above."
    begins = (
        f" Answer: According to the chain(s) of variable assignment in the text above, {len(chain)} variables are "
        f"assigned the value {value}, they are:"
    )
    return RulerText(head + "\n".join(lines), asks + begins, chain)


def _common_words(random: Random, pieces: int, length: int) -> RulerText:
    often, seldom = (30, 3) if length >= _LONG else (6, 1)
    example, _ = _word_list(random, 2 * _COMMON, 3, 1)
    listed, common = _word_list(random, _COMMON + pieces, often, seldom)
    head = (
        "Below is a numbered list of words. In these words, some appear more often than others. Memorize the ones that "
        "appear most often.\n"
    )
    asks = "\nQuestion: What are the 10 most common words in the above list?"
    begins = " Answer: The top 10 words that appear most often in the list are:"
    shown = f"{head}{example[0]}{asks}{begins} {_numbered(example[1])}\n"
    return RulerText(f"{shown}{head}{listed[0]}", asks + begins, common)


def _word_list(random: Random, count: int, often: int, seldom: int) -> tuple[tuple[str, list[str]], list[str]]:
    """(the list as text, its common words), and these again."""
    words = _words(random, count)
    common, others = words[:_COMMON], words[_COMMON:]
    every = common * often + others * seldom
    random.shuffle(every)
    return (_numbered(every), common), common


def _numbered(words: Sequence[str]) -> str:
    return " ".join(f"{number}. {word}" for number, word in enumerate(words, 1))


def _frequent_words(random: Random, pieces: int, length: int) -> RulerText:
    """Coded words by Zipf's law; the most frequent is "...", which is noise."""
    coded = ["..."]
    while len(coded) < max(8, length // 50):
        coded.append("".join(random.choices(string.ascii_lowercase, k=_LETTERS)))
    total = sum(rank**-_EXPONENT for rank in range(1, 10**4))
    counts = [int(10 * pieces * rank**-_EXPONENT / total) for rank in range(1, len(coded) + 1)]
    every = [word for word, count in zip(coded, counts, strict=True) for _ in range(count)]
    random.shuffle(every)
    head = (
        "Read the following coded text and track the frequency of each coded word. Find the three most frequently "
        "appeared coded words. "
    )
    asks = (
        "\nQuestion: Do not provide any explanation. Please ignore the dots '....'. What are the three most frequently "
        "appeared words in the above coded text?"
    )
    begins = " Answer: According to the coded text above, the three most frequently appeared words are:"
    return RulerText(head + " ".join(every), asks + begins, coded[1:4])


_NEEDLE_TOKENS = 128
KINDS: dict[str, RulerKind] = {
    name: RulerKind(partial(_needles, **settings), _NEEDLE_TOKENS)  # type: ignore[arg-type]
    for name, settings in {
        "single-1": {"hay": "noise"},
        "single-2": {"hay": "essays"},
        "single-3": {"hay": "essays", "value": "uuids"},
        "multikey-1": {"hay": "essays", "keys": 4},
        "multikey-2": {"hay": "needles"},
        "multikey-3": {"hay": "needles", "key": "uuids", "value": "uuids"},
        "multivalue": {"hay": "essays", "values": 4},
        "multiquery": {"hay": "essays", "keys": 4, "asked": 4},
    }.items()
} | {
    "vt": RulerKind(_variables, 32),
    "cwe": RulerKind(_common_words, 120),
    "fwe": RulerKind(_frequent_words, 52),
}
