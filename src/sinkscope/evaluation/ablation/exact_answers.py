"""Exact answers as a measure: one number, right or wrong, an example."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sinkscope.decoding.generation import check_prompts
from sinkscope.evaluation.ablation.base import Removal
from sinkscope.evaluation.ablation.outcomes import Outcome
from sinkscope.evaluation.running import Plan
from sinkscope.interventions import MaskSinks


@dataclass(frozen=True)
class ExactAnswers:
    """The share of examples of a task that are answered exactly."""

    plan: Plan

    @property
    def task(self) -> str:
        """Of the task."""
        return self.plan.task.name

    @property
    def n(self) -> int:
        """Number of examples."""
        return len(self.plan.examples)

    @property
    def better(self) -> str:
        """More right answers are better."""
        return "high"

    def check(self, intervention: MaskSinks) -> None:
        """Before any work."""
        check_prompts(self.plan.model, self.plan.encoded, self.plan.settings, intervention)

    def run(self, intervention: MaskSinks | None, observer: Callable[[int], None]) -> tuple[Outcome, Removal | None]:
        """Generate all answers."""
        score = replace(self.plan, intervention=intervention).run(observer)
        right = np.array(score.right, dtype=np.float64)
        return Outcome(right, np.ones_like(right), exact=True), score.removed

    def settings(self) -> dict[str, Any]:
        """Examples and decoding."""
        plan = self.plan
        return {
            "task": self.task,
            "n": self.n,
            "seed": plan.seed,
            "room": plan.room,
            "batch_size": plan.batch_size,
            "decoding": vars(plan.settings),
        }
