"""Perplexity and infilling as measures: sums of every text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sinkscope.decoding.protocols import MaskingStats
from sinkscope.errors import UserError
from sinkscope.evaluation.ablation.base import Measure, Removal
from sinkscope.evaluation.grids.examples import Examples, check_naming
from sinkscope.evaluation.grids.outcomes import Outcome
from sinkscope.evaluation.grids.which_texts import Texts, texts_for
from sinkscope.evaluation.infilling import InfillingPlan, Row, plan_infilling
from sinkscope.evaluation.passages import Passage
from sinkscope.evaluation.perplexity import PerplexityPlan, plan_perplexity
from sinkscope.families import Model
from sinkscope.interventions import MaskSinks

_DRAWS = 3
"""Maskings of each text."""


@dataclass(frozen=True)
class NatsPerToken:
    """Mean negative log-likelihood of a token, the logarithm of the perplexity."""

    plan: PerplexityPlan
    texts: Texts
    task: str = "perplexity"
    better: str = "low"
    unit: str = "nats a token"

    @property
    def n(self) -> int:
        """Number of texts."""
        return self.plan.texts[-1] + 1

    @property
    def batch_size(self) -> int:
        """Windows read together."""
        return self.plan.batch_size

    @property
    def notes(self) -> tuple[str, ...]:
        """Of the texts."""
        return self.texts.notes

    def check(self, intervention: MaskSinks) -> None:
        """Before any work."""

        def check(passages: Sequence[Passage]) -> None:
            replace(self.plan, passages=tuple(passages)).check(intervention)

        check_naming(check, self.plan.passages, lambda number: f"text {self.plan.texts[number]} of {self.texts.name}")

    def run(self, intervention: MaskSinks | None, observer: Callable[[int], None]) -> tuple[Outcome, Removal | None]:
        """Score all texts."""
        found = self.plan.run(intervention, observer)
        outcome = Outcome(-np.array(found.log_likelihoods), np.array(found.counts, dtype=np.float64), exact=False)
        return outcome, _removal(found.removed)

    def settings(self) -> dict[str, Any]:
        """Texts and windows."""
        read = [[*passage.given, *passage.scored] for passage in self.plan.passages]
        return {"task": self.task, **self.texts.settings(), "tokens": read, "prefix": self.plan.prefix}


@dataclass(frozen=True)
class FilledPositions:
    """Share of masked positions that are filled correctly, at one ratio of masks."""

    plan: InfillingPlan
    texts: Texts
    better: str = "high"
    unit: str = "share of masked positions filled correctly"

    @property
    def task(self) -> str:
        """With the ratio."""
        return f"infilling-{self.plan.ratios[0]:g}"

    @property
    def n(self) -> int:
        """Number of texts."""
        return len(self.plan.rows) // self.plan.draws

    @property
    def batch_size(self) -> int:
        """Maskings filled together."""
        return self.plan.batch_size

    @property
    def notes(self) -> tuple[str, ...]:
        """Of the texts."""
        return self.texts.notes

    def check(self, intervention: MaskSinks) -> None:
        """Before any work."""

        def check(rows: Sequence[Row]) -> None:
            replace(self.plan, rows=tuple(rows)).check(intervention)

        rows = self.plan.rows
        check_naming(check, rows, lambda number: f"text {rows[number].text} of {self.texts.name}")

    def run(self, intervention: MaskSinks | None, observer: Callable[[int], None]) -> tuple[Outcome, Removal | None]:
        """Fill all texts."""
        [found] = self.plan.run(intervention, observer)
        right, masked = np.array(found.right, dtype=np.float64), np.array(found.positions, dtype=np.float64)
        return Outcome(right, masked, exact=False), _removal(found.removed)

    def settings(self) -> dict[str, Any]:
        """Texts and masks."""
        plan = self.plan
        tokens = [row.tokens for row in plan.rows]
        drawn = {"draws": plan.draws, "seed": plan.seed}
        return {"task": self.task, **self.texts.settings(), "tokens": tokens, **drawn}


def make_perplexity(model: Model, examples: Examples) -> Measure:
    """Perplexity of texts, for an autoregressive model."""
    if model.family.bidirectional:
        raise UserError(
            f"{model.name} ({model.family.name}) sees in both directions and has no perplexity; take the task "
            "infilling-0.3 (--task), or another share of masks"
        )

    texts = texts_for(model, examples)
    return NatsPerToken(plan_perplexity(model, texts.texts, batch_size=examples.batch_size), texts)


def make_infilling(model: Model, examples: Examples, ratio: float) -> Measure:
    """Infilling of texts at a mask ratio, for a model with mask tokens."""
    texts = texts_for(model, examples)
    plan = plan_infilling(
        model, texts.texts, ratios=(ratio,), draws=_DRAWS, seed=examples.seed, batch_size=examples.batch_size
    )
    return FilledPositions(plan, texts)


def _removal(removed: MaskingStats | None) -> Removal | None:
    return None if removed is None else removed.to_dict()
