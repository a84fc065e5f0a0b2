"""Tasks with exact answers, and how many of them a model gets right.

score = evaluate(load_model("runs/twins/twin-ar/model"), "copy")
score.score, score.low, score.high
"""

from sinkscope.evaluation.answers import Scorer, exact, first_number, last_number
from sinkscope.evaluation.base import ROOM, Example, Task
from sinkscope.evaluation.infilling import Infilling, infilling_accuracy, plan_infilling
from sinkscope.evaluation.likelihood import Likelihood, log_likelihood
from sinkscope.evaluation.perplexity import (
    AnswerLikelihood,
    Perplexity,
    perplexity,
    plan_perplexity,
    sequence_log_likelihood,
)
from sinkscope.evaluation.running import Plan, Score, Wrong, evaluate, plan_evaluation, task_settings
from sinkscope.evaluation.tasks import LITTLE, TASKS, examples, find_task
from sinkscope.evaluation.texts import little_texts, prose, reactions
from sinkscope.intervals import wilson_interval

__all__ = [
    "LITTLE",
    "ROOM",
    "TASKS",
    "AnswerLikelihood",
    "Example",
    "Infilling",
    "Likelihood",
    "Perplexity",
    "Plan",
    "Score",
    "Scorer",
    "Task",
    "Wrong",
    "evaluate",
    "exact",
    "examples",
    "find_task",
    "first_number",
    "infilling_accuracy",
    "last_number",
    "little_texts",
    "log_likelihood",
    "perplexity",
    "plan_evaluation",
    "plan_infilling",
    "plan_perplexity",
    "prose",
    "reactions",
    "sequence_log_likelihood",
    "task_settings",
    "wilson_interval",
]
