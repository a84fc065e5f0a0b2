"""Measures by name: every task with exact answers, `perplexity`, and `infilling-RATIO`."""

from functools import partial

from sinkscope.errors import UserError
from sinkscope.evaluation.ablation.base import MakeMeasure, Measure
from sinkscope.evaluation.ablation.exact_answers import ExactAnswers
from sinkscope.evaluation.ablation.texts import make_infilling, make_perplexity
from sinkscope.evaluation.base import Task
from sinkscope.evaluation.grids.examples import Examples
from sinkscope.evaluation.grids.which_texts import check_texts
from sinkscope.evaluation.running import plan_evaluation
from sinkscope.evaluation.tasks import TASKS, find_task
from sinkscope.families import Model

PERPLEXITY, INFILLING = "perplexity", "infilling-"
MEASURES = (*TASKS, PERPLEXITY, f"{INFILLING}RATIO")
"""Names for people; RATIO stands for a share such as 0.3."""


def find_measure(name: str, examples: Examples) -> MakeMeasure:
    """The measure called `name` over these examples, to be laid out for one model or several.

    Raises `UserError` for an unknown name, naming those that there are; texts that can't be read; and texts for a task
    that tells its own.
    """
    if name not in TASKS and name != PERPLEXITY and not name.startswith(INFILLING):
        raise UserError(f"unknown task {name!r}; choose one of {', '.join(MEASURES)}")
    if name in TASKS:
        if examples.texts is not None:
            raise UserError(
                f"the task {name} tells its own examples, texts {examples.texts!r} are for {PERPLEXITY} and "
                f"{INFILLING}RATIO: leave them out (--texts), or run those tasks apart"
            )
        return partial(_exact_answers, examples=examples, task=find_task(name))
    check_texts(examples.texts)
    if name == PERPLEXITY:
        return partial(make_perplexity, examples=examples)
    return partial(make_infilling, examples=examples, ratio=_ratio(name))


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
