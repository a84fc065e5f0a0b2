"""A needle in a haystack: one fact at some depth of filler text of some length, and a question about it at the end.

For models of the little language the filler is its plain stories and the needle its passkey, held out from training;
for others the filler is the packaged prose, its sentences in a new order for each example, and the needle a sentence
of its own kind. The answer is a number: what is said after it does not count.

Costs an encoding of every sentence. Misleads: a long haystack tells the same sentences several times, which is easier
to read past than a book. The needle is unlike all that stands around it, so finding it is matching words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

from sinkscope.decoding import encode_prompts
from sinkscope.errors import UserError
from sinkscope.evaluation.answers import ExactAnswers, lay_out_answers
from sinkscope.evaluation.measuring import MeasureOptions
from sinkscope.evaluation.tasks import Example, Task, first_number
from sinkscope.evaluation.texts import prose
from sinkscope.families import Model
from sinkscope.language.problems import filler, split_of
from sinkscope.language.vocabulary import END

NAME = "needle"
DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
LITTLE_LENGTHS, LENGTHS = (32, 64), (256, 512)
"""Tokens of the haystacks, for models of the little language and for others, if nobody says otherwise."""
_COLOURS = ("white", "red", "grey", "black", "green", "blue", "yellow", "striped")
_CAPES = ("Cape Orlin", "Marrow Point", "Tessel Head", "Dunwick Ness", "Gull Rock", "Harrow Bay", "Pender Isle")


@dataclass(frozen=True)
class Needle:
    """A fact, the question about it, and the number that answers it."""

    fact: str
    question: str
    answer: str


@dataclass(frozen=True)
class Language:
    """Where haystacks and needles come from, and where they are looked up."""

    needle: Callable[[Random], Needle]
    sentences: Callable[[Random], Iterator[str]]
    """Endless filler."""
    gen_length: int


def make_needle(model: Model, options: MeasureOptions) -> ExactAnswers:
    """About `options.examples.n` needles, as many at every depth of every length, one at least.

    Raises `UserError` for depths outside 0 to 1 and haystacks that have no room for a sentence beside the needle.
    """
    examples, little = options.examples, model.family.closed_vocabulary
    language = _LITTLE if little else _ENGLISH
    lengths = (LITTLE_LENGTHS if little else LENGTHS) if options.lengths is None else options.lengths
    depths = DEPTHS if options.depths is None else options.depths
    check_places(lengths, depths)
    if model.tokenizer is None:
        raise UserError(f"{model.name} has no tokenizer, and the task {NAME} is text; add one to its folder")
    random = Random(f"{NAME} {examples.seed}")
    haystacks = _Haystacks(model, language)
    places = [(length, depth) for length in lengths for depth in depths]
    each = max(1, examples.n // len(places))
    told = [haystacks.example(random, *place) for place in places for _ in range(each)]
    task = Task(
        name=NAME,
        summary="a fact at some depth of filler text",
        gen_length=language.gen_length,
        stream=lambda _, __: iter(told),
        is_right=first_number,
    )
    drawn = {"seed": examples.seed, "lengths": list(lengths), "depths": list(depths)}
    counted = f"{len(places)} places take the same number of needles each: {len(told)} in all, not {examples.n}"
    notes = () if len(told) == examples.n else (counted,)
    return lay_out_answers(model, task, told, options, drawn=drawn, notes=notes)


def check_places(lengths: Sequence[int] | None, depths: Sequence[float] | None) -> None:
    """Raise `UserError` for places that there are not."""
    wrong = [depth for depth in depths or () if not 0 <= depth <= 1]
    if wrong:
        raise UserError(f"depths lie between 0 (the beginning) and 1 (the end), got {wrong[0]:g}")
    short = [length for length in lengths or () if length < 1]
    if short:
        raise UserError(f"lengths are numbers of tokens, at least 1; got {short[0]}")
    for name, values in (("length", lengths or ()), ("depth", depths or ())):
        if len(set(values)) < len(values):
            raise UserError(f"a {name} is named twice; name each once")


class _Haystacks:
    """Tells haystacks of a length in a model's own tokens."""

    def __init__(self, model: Model, language: Language) -> None:
        self._model = model
        self._language = language
        self._sizes: dict[str, int] = {}

    def example(self, random: Random, length: int, depth: float) -> Example:
        """A needle at this depth of a context of at most `length` tokens, as near to it as whole sentences come."""
        needle = self._language.needle(random)
        lines: list[str] = []
        room = length - self._size(needle.fact)
        for line in self._language.sentences(random):
            room -= self._size(line)
            if room < 0:
                break
            lines.append(line)
        if not lines:
            raise UserError(
                f"a haystack of {length} tokens has no room for a sentence beside the needle; name larger --lengths"
            )
        lines.insert(round(depth * len(lines)), needle.fact)
        context = " ".join(lines)
        return Example(f"{context}{needle.question}", needle.answer, context)

    def _size(self, sentence: str) -> int:
        """Tokens, of a sentence that stands behind another."""
        if sentence not in self._sizes:
            self._sizes[sentence] = len(encode_prompts(self._model, f" {sentence}", continuing=True)[0])
        return self._sizes[sentence]


def _passkey(random: Random) -> Needle:
    while True:
        value = "".join(random.choices("0123456789", k=3))
        if split_of(f"passkey {value}") == "test":
            return Needle(f"The passkey is {value}.", f" What is the passkey? {END}", value)


def _stories(random: Random) -> Iterator[str]:
    while True:
        yield from filler(random, 9)


def _lighthouse(random: Random) -> Needle:
    tower = f"{random.choice(_COLOURS)} lighthouse on {random.choice(_CAPES)}"
    value = str(random.randint(1000, 9999))
    asked = f"\n\nQuestion: What is the number of the {tower}?\nAnswer: The number of the {tower} is"
    return Needle(f"The number of the {tower} is {value}.", asked, value)


def _prose(random: Random) -> Iterator[str]:
    lines = [line for text in prose() for line in re.split(r"(?<=\.) ", text)]
    while True:
        yield from random.sample(lines, len(lines))


_LITTLE = Language(needle=_passkey, sentences=_stories, gen_length=4)
_ENGLISH = Language(needle=_lighthouse, sentences=_prose, gen_length=8)
