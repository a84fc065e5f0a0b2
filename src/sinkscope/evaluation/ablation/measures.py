"""What a grid measures in each cell. A measure is checked and laid out once a model, and run once a cell."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from sinkscope.decoding.generation import check_prompts
from sinkscope.decoding.intervening import Intervention
from sinkscope.evaluation.ablation.outcomes import Outcome
from sinkscope.evaluation.running import Plan, plan_evaluation
from sinkscope.evaluation.tasks import find_task
from sinkscope.families import Model

Removal = dict[str, float | None]


class Measure(Protocol):
    """Something that gives one number an example, under any intervention."""

    @property
    def task(self) -> str:
        """Its name."""

    @property
    def n(self) -> int:
        """Number of examples."""

    @property
    def better(self) -> str:
        """Which scores are better, "high" or "low"."""

    def check(self, intervention: Intervention) -> None:
        """Raise `UserError` where this intervention can't be measured so."""

    def run(self, intervention: Intervention | None, observer: Callable[[int], None]) -> tuple[Outcome, Removal | None]:
        """Measure. observer: called with the number of examples done."""

    def settings(self) -> dict[str, Any]:
        """Everything that decides the numbers, apart from the model and the intervention, as JSON."""


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

    def check(self, intervention: Intervention) -> None:
        """Before any work."""
        check_prompts(self.plan.model, self.plan.encoded, self.plan.settings, intervention)

    def run(self, intervention: Intervention | None, observer: Callable[[int], None]) -> tuple[Outcome, Removal | None]:
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


class MakeMeasure(Protocol):
    """Checks and lays out a measure for a model. Raises `UserError` where the model can't be measured so."""

    def __call__(self, model: Model, *, n: int, seed: int, room: int, batch_size: int) -> Measure:
        """n examples, drawn by a seed, whose texts take at most `room` tokens, `batch_size` together."""


def find_measure(name: str) -> MakeMeasure:
    """The measure called `name`: a task with exact answers. Raises `UserError` naming those that there are."""
    task = find_task(name)

    def make(model: Model, *, n: int, seed: int, room: int, batch_size: int) -> Measure:
        return ExactAnswers(plan_evaluation(model, task, n=n, seed=seed, room=room, batch_size=batch_size))

    return make
