"""Measures by name: every task with exact answers, `perplexity`, and `infilling-RATIO`."""

from functools import partial

from sinkscope.errors import UserError
from sinkscope.evaluation.ablation.base import Examples, MakeMeasure, Measure
from sinkscope.evaluation.ablation.exact_answers import ExactAnswers
from sinkscope.evaluation.ablation.texts import make_infilling, make_perplexity
from sinkscope.evaluation.base import Task
from sinkscope.evaluation.running import plan_evaluation
from sinkscope.evaluation.tasks import TASKS, find_task
from sinkscope.families import Model

PERPLEXITY, INFILLING = "perplexity", "infilling-"
MEASURES = (*TASKS, PERPLEXITY, f"{INFILLING}RATIO")
"""Names for people; RATIO stands for a share such as 0.3."""


def find_measure(name: str) -> MakeMeasure:
    """The measure called `name`. Raises `UserError` naming those that there are."""
    if name == PERPLEXITY:
        return make_perplexity
    if name.startswith(INFILLING):
        return partial(make_infilling, ratio=_ratio(name))
    if name not in TASKS:
        raise UserError(f"unknown task {name!r}; choose one of {', '.join(MEASURES)}")
    return partial(_exact_answers, task=find_task(name))


def _exact_answers(model: Model, examples: Examples, task: Task) -> Measure:
    plan = plan_evaluation(
        model, task, n=examples.n, seed=examples.seed, room=examples.room, batch_size=examples.batch_size
    )
    return ExactAnswers(plan)


def _ratio(name: str) -> float:
    try:
        return float(name.removeprefix(INFILLING))
    except ValueError:
        raise UserError(f"task {name!r}: the ratio must be a number, infilling-0.3 for example") from None
