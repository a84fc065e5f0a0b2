"""Exact answers as a measure: one number, right or wrong, an example."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sinkscope.decoding import Run
from sinkscope.evaluation.ablation.base import Removal
from sinkscope.evaluation.grids.examples import check_naming, example_name
from sinkscope.evaluation.grids.outcomes import Outcome
from sinkscope.evaluation.running import Plan
from sinkscope.interventions import MaskSinks


@dataclass(frozen=True)
class ExactAnswers:
    """The share of examples of a task that are answered exactly."""

    plan: Plan
    better: str = "high"
    unit: str = "share of right answers"
    notes: tuple[str, ...] = ()

    @property
    def task(self) -> str:
        """Of the task."""
        return self.plan.task.name

    @property
    def n(self) -> int:
        """Number of examples."""
        return len(self.plan.examples)

    @property
    def batch_size(self) -> int:
        """Prompts run together."""
        return self.plan.batch_size

    def check(self, intervention: MaskSinks) -> None:
        """Before any work."""
        plan = self.plan

        def check(encoded: Sequence[list[int]]) -> None:
            Run(plan.model, plan.settings, intervention).check(encoded)

        check_naming(check, plan.encoded, self._example)

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
            "decoding": vars(plan.settings),
        }

    def _example(self, number: int) -> str:
        return example_name(number, self.plan.examples[number].prompt)
