"""Texts to measure likelihoods on, without a download: prose, reactions, and the little language.

    perplexity(load_model("smollm2-135m"), prose())
    infilling_accuracy(load_model("rxnmapper"), reactions())
    perplexity(load_model("twin-ar"), little_texts(100))

The prose was written for this package and states public facts; no model was trained on its wording. The reactions are
textbook examples (esters, amides, couplings, reductions), one a line as reaction SMILES, reactants before products.

`text_source` chooses where nobody does: the little language for a model that knows nothing else, prose for one whose
tokenizer can spell it, and reactions for one whose tokenizer can only spell those.

Misleads: there is little of it. Eight texts of about two hundred tokens tell a large change of perplexity from none,
not a small one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from random import Random
from typing import Any

from sinkscope.decoding import encode_prompts
from sinkscope.decoding.canvas import vocabulary_size
from sinkscope.errors import UserError
from sinkscope.evaluation.inputs import Examples
from sinkscope.evaluation.tasks import check_count
from sinkscope.families import Model
from sinkscope.language import MAKERS, document
from sinkscope.language.tokenizer import little_tokenizer
from sinkscope.language.vocabulary import EOS, ids
from sinkscope.trace.prompts import Content, read_prompts

LEAST = 24
"""Tokens of the shortest documents."""
_DOCUMENTS, _LONG = 100, 128
"""Of a reference: how many, and tokens of the longest, as in the training of twins."""


def prose() -> list[str]:
    """Short English texts, a paragraph each."""
    return _packaged("prose.txt")


def reactions() -> list[str]:
    """Reaction SMILES without atom mapping."""
    return _packaged("reactions.txt")


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


def _packaged(name: str) -> list[str]:
    text = files(__name__).joinpath(name).read_text(encoding="utf-8")
    return [line for line in text.splitlines() if line]


_PACKAGED = {"prose": prose, "reactions": reactions}
LITTLE = "little"
TEXTS = (LITTLE, *_PACKAGED)
_MOST_UNKNOWN = 0.2
"""Share of unknown tokens up to which a tokenizer can spell texts. For a reaction model half of prose is unknown."""


@dataclass(frozen=True, kw_only=True)
class Texts:
    """Texts for one model."""

    name: str
    """One of `TEXTS`, or a file."""
    texts: Sequence[Any]
    drawn: dict[str, int]
    """How they were drawn, where they were."""
    asked: int

    @property
    def notes(self) -> tuple[str, ...]:
        """Where there are fewer than were asked for."""
        if len(self.texts) == self.asked:
            return ()
        return (f"{self.name} has {len(self.texts)} texts, all are taken where {self.asked} were asked for",)

    def settings(self) -> dict[str, Any]:
        """As JSON."""
        return {"texts": self.name, **self.drawn}


def check_texts(name: str | None) -> None:
    """Raise `UserError` for texts that are no packaged ones and no file with any."""
    if name is not None and name not in TEXTS:
        _lines(Path(name))


def text_source(model: Model, examples: Examples) -> Texts:
    """At most `examples.n` texts. Raises `UserError` for texts that the model's tokenizer can't spell."""
    name = examples.texts or _fitting(model)
    if name == LITTLE:
        drawn = {"seed": examples.seed, "max_example_tokens": examples.max_example_tokens}
        texts: Sequence[Any] = little_texts(examples.n, length=examples.max_example_tokens, seed=examples.seed)
        if max(max(tokens) for tokens in texts) >= vocabulary_size(model):
            raise UserError(
                f"{model.name} does not speak the little language; give texts of the kind that it was trained on "
                "(--texts FILE), or take --task chain-writing for a chain"
            )
        return Texts(name=name, texts=texts, drawn=drawn, asked=examples.n)
    lines = _named(name)
    unknown = _unknown(model, lines)
    if unknown > _MOST_UNKNOWN:
        raise UserError(
            f"{model.name} has no token for {unknown:.0%} of {name}; give texts of the kind that it was trained on "
            "(--texts FILE, one text a line)"
        )
    return Texts(name=name, texts=lines[: examples.n], drawn={}, asked=examples.n)


def reference_texts(name: str) -> list[Content]:
    """Texts that values are taken from (`MaskSinks.reference`): the prompts of FILE.jsonl, another file's lines, or
    those of a name of `TEXTS`; of the little language 100 documents of at most 128 tokens.

    Raises `UserError` for what can't be read, and as `read_prompts` does.
    """
    if name == LITTLE:
        written = little_tokenizer()  # unlike `vocabulary.decode` it writes <eos> out
        return [str(written.decode(tokens[1:])) for tokens in little_texts(_DOCUMENTS, length=_LONG)]  # <bos> is added
    if Path(name).suffix == ".jsonl":
        return [one.content for one in read_prompts(name)]
    return list(_named(name))


def _fitting(model: Model) -> str:
    if model.family.closed_vocabulary:
        return LITTLE
    fitting = (name for name, texts in _PACKAGED.items() if _unknown(model, texts()) <= _MOST_UNKNOWN)
    return next(fitting, "prose")


def _unknown(model: Model, texts: Sequence[str]) -> float:
    """Share of the tokens that stand for anything unknown."""
    unknown = None if model.tokenizer is None else model.tokenizer.unk_token_id
    tokens = [token for row in encode_prompts(model, texts) for token in row]
    return tokens.count(unknown) / len(tokens) if unknown is not None else 0.0


def _named(name: str) -> list[str]:
    return _PACKAGED[name]() if name in _PACKAGED else _lines(Path(name))


def _lines(file: Path) -> list[str]:
    try:
        lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        raise UserError(f"texts {str(file)!r}: {reason}; name one of {', '.join(TEXTS)}, or a text file") from error
    if not lines:
        raise UserError(f"{file} holds no text; write one a line")
    return lines
