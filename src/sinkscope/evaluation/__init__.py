"""Measures of language models: what is asked of a model, under any condition on its keys.

score = evaluate(load_model("twin-ar"), "copy")
score.score, score.low, score.high
"""

from sinkscope.evaluation.answers import Evaluation, Score, Wrong, evaluate, plan_evaluation, task_settings
from sinkscope.evaluation.conditions import KeysCondition
from sinkscope.evaluation.infilling import Infilling, infilling_accuracy, plan_infilling
from sinkscope.evaluation.inputs import Examples
from sinkscope.evaluation.likelihood import Likelihood, log_likelihood
from sinkscope.evaluation.measures import MEASURES, find_measure, find_measures
from sinkscope.evaluation.measuring import BlockCaching, KeysMeasure, MeasureOptions
from sinkscope.evaluation.perplexity import (
    AnswerLikelihood,
    Perplexity,
    perplexity,
    plan_perplexity,
    sequence_log_likelihood,
)
from sinkscope.evaluation.tasks import LITTLE, MAX_EXAMPLE_TOKENS, TASKS, Example, Task, examples, find_task
from sinkscope.evaluation.texts import little_texts, prose, reactions

__all__ = [
    "LITTLE",
    "MAX_EXAMPLE_TOKENS",
    "MEASURES",
    "TASKS",
    "AnswerLikelihood",
    "BlockCaching",
    "Evaluation",
    "Example",
    "Examples",
    "Infilling",
    "KeysCondition",
    "KeysMeasure",
    "Likelihood",
    "MeasureOptions",
    "Perplexity",
    "Score",
    "Task",
    "Wrong",
    "evaluate",
    "examples",
    "find_measure",
    "find_measures",
    "find_task",
    "infilling_accuracy",
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
]
