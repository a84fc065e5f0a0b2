"""Perplexity and infilling as measures: sums of every text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sinkscope.decoding import Prompts
from sinkscope.decoding.intervening import Removed
from sinkscope.errors import UserError
from sinkscope.evaluation.ablation.base import Examples, Measure, Removal
from sinkscope.evaluation.ablation.outcomes import Outcome
from sinkscope.evaluation.infilling import InfillingPlan, plan_infilling
from sinkscope.evaluation.perplexity import PerplexityPlan, plan_perplexity
from sinkscope.evaluation.texts import little_texts, prose, reactions
from sinkscope.families import Model
from sinkscope.interventions import MaskSinks

TEXTS = ("little", "prose", "reactions")


def texts_for(model: Model, examples: Examples) -> tuple[str, Prompts]:
    """The name of the texts, and at most `examples.n` of them. Raises `UserError` for a name or file that is none."""
    name = examples.texts or ("little" if model.family.closed_vocabulary else "prose")
    if name == "little":
        return name, little_texts(examples.n, length=examples.room, seed=examples.seed)
    lines = {"prose": prose, "reactions": reactions}[name]() if name in TEXTS else _lines(Path(name))
    return name, lines[: examples.n]


def _lines(file: Path) -> list[str]:
    try:
        lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        raise UserError(f"texts {str(file)!r}: {reason}; name one of {', '.join(TEXTS)}, or a text file") from error
    if not lines:
        raise UserError(f"{file} holds no text; write one a line")
    return lines


@dataclass(frozen=True)
class NatsPerToken:
    """Mean negative log-likelihood of a token, the logarithm of the perplexity."""

    plan: PerplexityPlan
    texts: str
    task: str = "perplexity"
    better: str = "low"

    @property
    def n(self) -> int:
        """Number of texts."""
        return self.plan.texts[-1] + 1

    def check(self, intervention: MaskSinks) -> None:
        """Before any work."""
        self.plan.check(intervention)

    def run(self, intervention: MaskSinks | None, observer: Callable[[int], None]) -> tuple[Outcome, Removal | None]:
        """Score all texts."""
        found = self.plan.run(intervention, observer)
        outcome = Outcome(-np.array(found.log_likelihoods), np.array(found.counts, dtype=np.float64), exact=False)
        return outcome, _removal(found.removed)

    def settings(self) -> dict[str, Any]:
        """Texts and windows."""
        plan = self.plan
        read = [[*passage.given, *passage.scored] for passage in plan.passages]
        return {
            "task": self.task,
            "texts": self.texts,
            "tokens": read,
            "prefix": plan.prefix,
            "batch_size": plan.batch_size,
        }


@dataclass(frozen=True)
class FilledPositions:
    """Share of masked positions that are filled correctly, at one ratio of masks."""

    plan: InfillingPlan
    texts: str
    better: str = "high"

    @property
    def task(self) -> str:
        """With the ratio."""
        return f"infilling-{self.plan.ratios[0]:g}"

    @property
    def n(self) -> int:
        """Number of texts."""
        return len(self.plan.rows) // self.plan.draws

    def check(self, intervention: MaskSinks) -> None:
        """Before any work."""
        self.plan.check(intervention)

    def run(self, intervention: MaskSinks | None, observer: Callable[[int], None]) -> tuple[Outcome, Removal | None]:
        """Fill all texts."""
        [found] = self.plan.run(intervention, observer)
        right, masked = np.array(found.right, dtype=np.float64), np.array(found.positions, dtype=np.float64)
        return Outcome(right, masked, exact=False), _removal(found.removed)

    def settings(self) -> dict[str, Any]:
        """Texts and masks."""
        plan = self.plan
        return {
            "task": self.task,
            "texts": self.texts,
            "tokens": [row.tokens for row in plan.rows],
            "draws": plan.draws,
            "seed": plan.seed,
            "batch_size": plan.batch_size,
        }


def make_perplexity(model: Model, examples: Examples) -> Measure:
    """Perplexity of texts, for an autoregressive model."""
    name, texts = texts_for(model, examples)
    return NatsPerToken(plan_perplexity(model, texts, batch_size=examples.batch_size), name)


def make_infilling(model: Model, examples: Examples, ratio: float) -> Measure:
    """Infilling of texts at a mask ratio, for a model with mask tokens."""
    name, texts = texts_for(model, examples)
    plan = plan_infilling(
        model, texts, ratios=(ratio,), draws=_DRAWS, seed=examples.seed, batch_size=examples.batch_size
    )
    return FilledPositions(plan, name)


_DRAWS = 3
"""Maskings of each text."""


def _removal(removed: Removed | None) -> Removal | None:
    return None if removed is None else removed.to_dict()
