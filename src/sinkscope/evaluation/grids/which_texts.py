"""Which texts likelihoods and infilling are measured on.

If nobody says: those of the little language for a model that knows nothing else, prose for one whose tokenizer can
spell it, and reactions for one whose tokenizer can only spell those. Costs the encoding of the packaged texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sinkscope.decoding import encode_prompts
from sinkscope.errors import UserError
from sinkscope.evaluation.grids.examples import Examples
from sinkscope.evaluation.texts import little_texts, prose, reactions
from sinkscope.families import Model

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


def texts_for(model: Model, examples: Examples) -> Texts:
    """At most `examples.n` texts. Raises `UserError` for texts that the model's tokenizer can't spell."""
    name = examples.texts or _fitting(model)
    if name == LITTLE:
        drawn = {"seed": examples.seed, "room": examples.room}
        texts: Sequence[Any] = little_texts(examples.n, length=examples.room, seed=examples.seed)
        return Texts(name=name, texts=texts, drawn=drawn, asked=examples.n)
    lines = _named(name)
    unknown = _unknown(model, lines)
    if unknown > _MOST_UNKNOWN:
        raise UserError(
            f"{model.name} has no token for {unknown:.0%} of {name}; give texts of the kind that it was trained on "
            "(--texts FILE, one text a line)"
        )
    return Texts(name=name, texts=lines[: examples.n], drawn={}, asked=examples.n)


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
